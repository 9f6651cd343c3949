# find_package(intarsia) gives
#   intarsia::intarsia       the library and its header, for hosts in C and C++; there where a built library is found
#   intarsia_add_library()   for libraries of ops of your own; there where the sources are
# in three layouts: a checkout, a wheel (`intarsia --cmake-dir` prints where this file is), and what
# `cmake --install BUILD --component host` makes.
if(EXISTS ${CMAKE_CURRENT_LIST_DIR}/IntarsiaLibrary.cmake)
  include(${CMAKE_CURRENT_LIST_DIR}/IntarsiaLibrary.cmake)
endif()

if(NOT TARGET intarsia::intarsia)
  # The wheel intarsia-cuda13 has a library of its own, which comes first, as in Python.
  foreach(place "../../../intarsia_cuda13/lib;../../include" "../python/intarsia/lib;../include" "../../lib;../../include"
                "../..;../../../include")
    list(GET place 0 lib)
    list(GET place 1 include)
    get_filename_component(library ${CMAKE_CURRENT_LIST_DIR}/${lib}/libintarsia.so ABSOLUTE)
    get_filename_component(include ${CMAKE_CURRENT_LIST_DIR}/${include} ABSOLUTE)
    if(EXISTS ${library} AND EXISTS ${include}/intarsia/intarsia.h)
      add_library(intarsia::intarsia SHARED IMPORTED)
      set_target_properties(intarsia::intarsia PROPERTIES IMPORTED_LOCATION ${library}
                            INTERFACE_INCLUDE_DIRECTORIES ${include})
      break()
    endif()
  endforeach()
endif()
if(NOT TARGET intarsia::intarsia)
  message(STATUS "intarsia: no built library beside ${CMAKE_CURRENT_LIST_DIR}, so there is no target intarsia::intarsia; "
                 "`make build` makes one")
endif()
