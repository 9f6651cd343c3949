# find_package(intarsia) gives intarsia_add_library(); `intarsia --cmake-dir` prints where this file is.
include(${CMAKE_CURRENT_LIST_DIR}/IntarsiaLibrary.cmake)
