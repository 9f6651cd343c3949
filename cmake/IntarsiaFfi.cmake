# XLA's typed FFI headers; third_party/xla_ffi/README.md says which.
if(NOT TARGET intarsia_ffi_headers) # of another find_package
  add_library(intarsia_ffi_headers INTERFACE)
  target_include_directories(intarsia_ffi_headers SYSTEM INTERFACE ${CMAKE_CURRENT_LIST_DIR}/../third_party/xla_ffi)
endif()
