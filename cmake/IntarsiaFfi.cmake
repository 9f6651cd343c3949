# XLA's typed FFI headers, as they ship inside jaxlib. The library must be built against minor version
# 0.3: a runtime refuses handlers built with newer headers than its own (docs/design.md).
find_package(Python3 REQUIRED COMPONENTS Interpreter)
file(STRINGS ${CMAKE_CURRENT_LIST_DIR}/../pyproject.toml jaxlib REGEX "^requires = ")
string(REGEX MATCH "jaxlib[^\"]*" jaxlib "${jaxlib}")
if(NOT INTARSIA_FFI_INCLUDE)
  execute_process(
    COMMAND ${Python3_EXECUTABLE} -c
            "import importlib.util as u; print(u.find_spec('jaxlib').submodule_search_locations[0] + '/include')"
    OUTPUT_VARIABLE ffi_include OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE result ERROR_QUIET)
  if(result)
    message(FATAL_ERROR "${Python3_EXECUTABLE} has no jaxlib, whose FFI headers the build needs: pip install '${jaxlib}', or name another Python by -DPython3_EXECUTABLE")
  endif()
  set(INTARSIA_FFI_INCLUDE ${ffi_include} CACHE PATH "Folder with xla/ffi/api/ffi.h")
endif()
file(STRINGS ${INTARSIA_FFI_INCLUDE}/xla/ffi/api/c_api.h ffi_version REGEX "#define XLA_FFI_API_(MAJOR|MINOR) ")
string(REGEX REPLACE "[^0-9;]" "" ffi_version "${ffi_version}")
if(NOT ffi_version STREQUAL "0;3")
  message(FATAL_ERROR "FFI headers in ${INTARSIA_FFI_INCLUDE} have version ${ffi_version}, expected 0;3: ${jaxlib}")
endif()
add_library(intarsia_ffi_headers INTERFACE)
target_include_directories(intarsia_ffi_headers SYSTEM INTERFACE ${INTARSIA_FFI_INCLUDE})
