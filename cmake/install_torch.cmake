# Run by `cmake --install`, and alone by docker/Dockerfile: copies what gatehouse-server loads of LibTorch, from
# the `torch` package in `torch_package` to `destination`; of a CUDA build also NVIDIA's libraries, which lie
# beside it.  With `strip`, their symbol tables stay behind (88 MB).
get_filename_component(packages "${torch_package}" DIRECTORY)
set(torch "${torch_package}/lib")
file(GLOB libraries "${torch}/libtorch.so" "${torch}/libtorch_cpu.so" "${torch}/libtorch_cuda*.so" "${torch}/libc10*.so"
  "${torch}/libcaffe2_nvrtc.so" "${torch}/libgomp*.so*" "${packages}/nvidia/*/lib/*.so*")
if(NOT libraries MATCHES "/libtorch_cpu.so")
  message(FATAL_ERROR "There is no LibTorch in ${torch}")
endif()
file(INSTALL DESTINATION "${destination}" TYPE SHARED_LIBRARY FILES ${libraries})
if(strip)
  foreach(library IN LISTS libraries)
    get_filename_component(name "${library}" NAME)
    execute_process(COMMAND "${strip}" --strip-unneeded "$ENV{DESTDIR}${destination}/${name}"
      COMMAND_ERROR_IS_FATAL ANY)
  endforeach()
endif()
