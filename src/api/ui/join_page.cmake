# Joins page.html, page.css and the scripts to one page, and writes it as a C++ source:
#   cmake -DFOLDER=src/api/ui -DOUTPUT=page.cc -P join_page.cmake
file(READ "${FOLDER}/page.html" page)
file(READ "${FOLDER}/page.css" style)
set(script "")
foreach(part markdown store chat cluster show_me main)
  file(READ "${FOLDER}/${part}.js" text)
  string(APPEND script "${text}")
endforeach()
string(REPLACE "/* PAGE STYLE */" "${style}" page "${page}")
string(REPLACE "/* PAGE SCRIPT */" "${script}" page "${page}")
string(FIND "${page}" ")page\"" literal_end)
if(NOT literal_end EQUAL -1)
  message(FATAL_ERROR "a part of the page holds the end of its C++ literal")
endif()
file(WRITE "${OUTPUT}" "#include \"src/api/chat_page.h\"\n\n"
  "namespace baton::api {\n\nconst std::string_view kChatPage = R\"page(${page})page\";\n\n"
  "}  // namespace baton::api\n")
