# cmake -DOUTPUT=template.cc -DPAGE=report.html -DSTYLE=report.css -DSCRIPTS=a.js,b.js -P embed.cmake
# puts styles and scripts into the page, and the page into a C++ string.
file(READ "${PAGE}" page)
file(READ "${STYLE}" style)
string(REPLACE "," ";" scripts "${SCRIPTS}")
set(script "")
foreach(file IN LISTS scripts)
  file(READ "${file}" text)
  string(APPEND script "\n${text}")
endforeach()
string(REPLACE "{{style}}" "${style}" page "${page}")
string(REPLACE "{{script}}" "${script}" page "${page}")
file(WRITE "${OUTPUT}" "#include \"client/page/template.h\"

const char gatehouse::client::kReportPageTemplate[] = R\"gatehouse(${page})gatehouse\";
")
