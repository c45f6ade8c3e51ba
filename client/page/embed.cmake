# cmake -DOUTPUT=template.cc -DPAGE=report.html -DSTYLES=a.css,b.css -DSCRIPTS=a.js,b.js
#       -DLIVE_SCRIPT=live.js -P embed.cmake
# puts styles and scripts into the page, and the page into C++ strings: as it is, and with the
# live page's script and the right to ask its own server.
function(read_all result files)
  set(joined "")
  string(REPLACE "," ";" files "${files}")
  foreach(file IN LISTS files)
    file(READ "${file}" text)
    string(APPEND joined "\n${text}")
  endforeach()
  set(${result} "${joined}" PARENT_SCOPE)
endfunction()

function(fill result connect script)
  file(READ "${PAGE}" page)
  string(REPLACE "{{style}}" "${style}" page "${page}")
  string(REPLACE "{{connect}}" "${connect}" page "${page}")
  string(REPLACE "{{script}}" "${script}" page "${page}")
  set(${result} "${page}" PARENT_SCOPE)
endfunction()

read_all(style "${STYLES}")
read_all(script "${SCRIPTS}")
read_all(live "${LIVE_SCRIPT}")
fill(report_page "" "${script}")
fill(live_page "; connect-src 'self'" "${script}${live}")
file(WRITE "${OUTPUT}" "#include \"client/page/template.h\"

const char gatehouse::client::kReportPageTemplate[] = R\"gatehouse(${report_page})gatehouse\";
const char gatehouse::client::kLivePageTemplate[] = R\"gatehouse(${live_page})gatehouse\";
")
