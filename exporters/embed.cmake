# cmake -DSOURCE=<status_page folder> -DOUTPUT=<file.cpp> -P embed.cmake: the page as byte arrays.
set(text "#include \"exporters/status_page.h\"\n\nnamespace foreshock {\n")
foreach(pair "Html:page.html" "Js:page.js" "Css:page.css")
  string(REPLACE ":" ";" pair ${pair})
  list(GET pair 0 name)
  list(GET pair 1 file)
  file(READ ${SOURCE}/${file} bytes HEX)
  string(LENGTH "${bytes}" digits)
  math(EXPR size "${digits} / 2")
  string(REGEX REPLACE "(..)" "'\\\\x\\1'," bytes "${bytes}")
  string(APPEND text "static const char k${name}Bytes[] = {${bytes}};\n"
                     "const std::string_view kPage${name}(k${name}Bytes, ${size});\n")
endforeach()
file(WRITE ${OUTPUT} "${text}}  // namespace foreshock\n")
