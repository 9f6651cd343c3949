# intarsia_add_library(NAME [OPS_DIR DIR [FAMILIES FAMILY...]] [VERSION X.Y.Z]): a library of ops that
# `intarsia.load_ops` can load. DIR holds ops.inc and a folder for each op. XLA targets are NAME.<op>.
# FAMILIES are the folders of src whose sources the ops need beside core's: `attention`, say. Headers need no mention.
# Without OPS_DIR it is the project's own library: src/ops, all families, and the PJRT plugin.
#
# An op's files are found by their names: <op>_cpu.cc is compiled once for each instruction set,
# *.cu only with CUDA, *_sm90.cu for sm_90a alone. ops.inc is the only list.
get_filename_component(INTARSIA_ROOT ${CMAKE_CURRENT_LIST_DIR}/.. ABSOLUTE)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
include(${CMAKE_CURRENT_LIST_DIR}/IntarsiaCuda.cmake) # INTARSIA_WITH_CUDA and the architectures
include(${CMAKE_CURRENT_LIST_DIR}/IntarsiaFfi.cmake)  # target intarsia_ffi_headers

if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(INTARSIA_ISAS kAvx2 kAvx512)
  set(INTARSIA_FLAGS_kAvx2 -mavx2 -mfma -mf16c)
  # GCC 12 takes the deliberately undefined operand of its own AVX-512 intrinsics for a mistake (GCC PR 105593).
  set(INTARSIA_FLAGS_kAvx512 -Wno-maybe-uninitialized -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c -mprefer-vector-width=512)
else()
  set(INTARSIA_ISAS kGeneric)
  set(INTARSIA_FLAGS_kGeneric "")
endif()

option(INTARSIA_MANYLINUX "Bind to symbols of glibc 2.28, as wheels do, whichever glibc is here" OFF)

function(intarsia_compile_options target name version)
  set_target_properties(${target} PROPERTIES CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF
                        POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden
                        VISIBILITY_INLINES_HIDDEN ON)
  target_include_directories(${target} PUBLIC ${INTARSIA_ROOT} ${INTARSIA_ROOT}/include ${CMAKE_CURRENT_BINARY_DIR})
  set(fast "")
  if(INTARSIA_FAST_COMPILE AND CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
    set(fast -Ofc=max)
  endif()
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Werror;-fno-math-errno;-fno-trapping-math;-Wno-psabi>
                                           $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;$<$<BOOL:${INTARSIA_LINEINFO}>:-lineinfo>;${fast};$<$<VERSION_GREATER_EQUAL:$<CUDA_COMPILER_VERSION>,12.8>:-compress-mode=size>;-Werror;all-warnings;-Xcudafe;--diag_suppress=177>)
  target_compile_definitions(${target} PRIVATE INTARSIA_VERSION="${version}"
                             INTARSIA_TARGET_PREFIX="${name}")
  target_link_libraries(${target} PRIVATE intarsia_ffi_headers)
  if(INTARSIA_WITH_CUDA)
    target_compile_definitions(${target} PRIVATE INTARSIA_WITH_CUDA INTARSIA_CUDA_VERSION="${CUDAToolkit_VERSION}")
    target_link_libraries(${target} PRIVATE CUDA::cudart_static)
  endif()
  if(INTARSIA_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${INTARSIA_SANITIZE} -fno-sanitize-recover=all
                           -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC -fsanitize=${INTARSIA_SANITIZE})
  endif()
endfunction()

function(intarsia_link_options name)
  if(NOT INTARSIA_SANITIZE)
    # One library for every Linux: nothing of the toolchain's C++ runtime is needed or shown. The version
    # script hides what -fvisibility cannot: templates of namespace std, some of them unique in a process.
    set(exports ${INTARSIA_ROOT}/cmake/exports.map)
    target_link_options(${name} PRIVATE -static-libstdc++ -Wl,--exclude-libs,ALL -Wl,-z,defs
                        -Wl,--version-script=${exports})
    set_target_properties(${name} PROPERTIES LINK_DEPENDS ${exports})
  endif()
  if(INTARSIA_MANYLINUX)
    set(older ${INTARSIA_ROOT}/cmake/older_glibc.cc)
    target_sources(${name} PRIVATE ${older})
    file(STRINGS ${older} rows REGEX "^[^#]*INTARSIA_(OLDER|OLDER_AT|RENAMED|INSTEAD)\\(")
    foreach(row ${rows})
      string(REGEX REPLACE ".*INTARSIA_[A-Z_]+\\(([a-z_0-9]+)[,)].*" "-Wl,--wrap=\\1" wrap "${row}")
      target_link_options(${name} PRIVATE ${wrap})
    endforeach()
    # The older symbols lie in libraries of their own where glibc is older than 2.34.
    target_link_options(${name} PRIVATE -Wl,--gc-sections -Wl,--no-as-needed -l:libpthread.so.0 -l:libdl.so.2 -l:librt.so.1
                        -Wl,--as-needed)
  endif()
endfunction()

function(intarsia_add_library name)
  cmake_parse_arguments(arg "" "OPS_DIR;VERSION" "FAMILIES" ${ARGN})
  set(root ${INTARSIA_ROOT}/src)
  file(GLOB families CONFIGURE_DEPENDS LIST_DIRECTORIES true RELATIVE ${root} ${root}/*)
  list(REMOVE_ITEM families api bridge core ffi ops pjrt torch)
  if(arg_OPS_DIR)
    get_filename_component(ops_dir ${arg_OPS_DIR} ABSOLUTE)
    foreach(family ${arg_FAMILIES})
      if(NOT family IN_LIST families)
        message(FATAL_ERROR "${name}: there is no family ${family}, expected some of ${families}")
      endif()
    endforeach()
    set(families ${arg_FAMILIES})
    set(plugin "")
  else()
    set(ops_dir ${root}/ops)
    set(plugin ${root}/pjrt/plugin/*.cc)
  endif()
  set(version 0.0.0)
  if(arg_VERSION)
    set(version ${arg_VERSION})
  endif()

  # Every op's header, for registry.cc.
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${ops_dir}/ops.inc)
  file(STRINGS ${ops_dir}/ops.inc rows REGEX "^INTARSIA_OP")
  set(includes "")
  foreach(row ${rows})
    string(REGEX REPLACE "^INTARSIA_OP\\(([a-z0-9_]+),.*" "\\1" op ${row})
    string(APPEND includes "#include \"${ops_dir}/${op}/${op}.h\"\n")
  endforeach()
  set(generated ${CMAKE_CURRENT_BINARY_DIR}/${name}_generated)
  file(CONFIGURE OUTPUT ${generated}/all_ops.h CONTENT "${includes}" @ONLY)
  file(CONFIGURE OUTPUT ${generated}/ops.inc CONTENT "#include \"${ops_dir}/ops.inc\"\n" @ONLY)

  file(GLOB sources CONFIGURE_DEPENDS ${root}/core/*.cc ${root}/core/cpu/*.cc ${root}/ffi/*.cc ${root}/pjrt/*.cc ${plugin}
       ${root}/torch/*.cc ${root}/api/*.cc ${root}/ops/registry.cc ${ops_dir}/*/*.cc)
  file(GLOB cuda_sources CONFIGURE_DEPENDS ${root}/core/cuda/*.cc ${ops_dir}/*/*.cu)
  foreach(family ${families})
    file(GLOB_RECURSE family_sources CONFIGURE_DEPENDS ${root}/${family}/*.cc)
    file(GLOB_RECURSE family_cuda_sources CONFIGURE_DEPENDS ${root}/${family}/*.cu)
    list(APPEND sources ${family_sources})
    list(APPEND cuda_sources ${family_cuda_sources})
  endforeach()
  set(per_isa ${sources})
  list(FILTER per_isa INCLUDE REGEX "_cpu\\.cc$")
  list(FILTER sources EXCLUDE REGEX "_cpu\\.cc$")
  if(INTARSIA_WITH_CUDA)
    list(APPEND sources ${cuda_sources})
  endif()

  set(sm90 ${sources})
  list(FILTER sm90 INCLUDE REGEX "_sm90\\.cu$")
  list(FILTER sources EXCLUDE REGEX "_sm90\\.cu$")
  if(sm90)
    add_library(${name}_sm90 OBJECT ${sm90})
    intarsia_compile_options(${name}_sm90 ${name} ${version})
    set_target_properties(${name}_sm90 PROPERTIES CUDA_ARCHITECTURES 90a-real)
    list(APPEND sources $<TARGET_OBJECTS:${name}_sm90>)
    list(APPEND object_targets ${name}_sm90)
  endif()

  foreach(isa ${INTARSIA_ISAS})
    add_library(${name}_${isa} OBJECT ${per_isa})
    intarsia_compile_options(${name}_${isa} ${name} ${version})
    target_compile_options(${name}_${isa} PRIVATE ${INTARSIA_FLAGS_${isa}})
    target_compile_definitions(${name}_${isa} PRIVATE INTARSIA_ISA=${isa})
    list(APPEND sources $<TARGET_OBJECTS:${name}_${isa}>)
    list(APPEND object_targets ${name}_${isa})
  endforeach()

  add_library(${name} SHARED ${sources})
  intarsia_compile_options(${name} ${name} ${version})
  target_include_directories(${name} PRIVATE ${generated})
  if(arg_OPS_DIR) # so that an op may include its header as "ops/negate/negate.h", wherever the project lies
    get_filename_component(project ${ops_dir} DIRECTORY)
    foreach(target ${name} ${object_targets})
      target_include_directories(${target} PRIVATE ${project})
    endforeach()
  endif()
  find_package(Threads REQUIRED)
  target_link_libraries(${name} PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
  intarsia_link_options(${name})
endfunction()
