# `cmake --install BUILD --strip --prefix DIR` makes a folder that runs wherever Debian's libraries are
# (docker/Dockerfile lists their packages): the programs, those of LibTorch's libraries that they need, the
# embedded models.
include(GNUInstallDirs)

# Not in lib/ itself, where a prefix such as /usr/local would offer them to other programs.
set(torch_folder "${CMAKE_INSTALL_LIBDIR}/gatehouse")
install(TARGETS gatehouse-server gatehouse RUNTIME)
set_target_properties(gatehouse-server PROPERTIES INSTALL_RPATH "$ORIGIN/../${torch_folder}")
install(DIRECTORY models/ DESTINATION "${CMAKE_INSTALL_DATADIR}/gatehouse/models" PATTERN "expected.json" EXCLUDE)

get_filename_component(torch_package "${Torch_DIR}/../../.." REALPATH)
install(CODE "
  set(torch_package \"${torch_package}\")
  set(destination \"\${CMAKE_INSTALL_PREFIX}/${torch_folder}\")
  if(CMAKE_INSTALL_DO_STRIP)
    set(strip \"${CMAKE_STRIP}\")
  endif()")
install(SCRIPT "${CMAKE_CURRENT_LIST_DIR}/install_torch.cmake")
