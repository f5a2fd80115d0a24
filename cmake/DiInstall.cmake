# What `make install` puts where: the program (component runtime), libdeepinfer with its headers and
# pkg-config file (component development), licence and pages.
#
# libdeepinfer.a is one object made of all modules below the engine, in which only the names of
# include/deepinfer/ are visible: a program that links it may call its own functions pool_new or
# log_info. DI_SHARED builds libdeepinfer.so from the same modules.
include(GNUInstallDirs)

# The module targets that `target` needs, itself included, each once.
function(di_closure out target)
  set(found ${${out}})
  if(NOT target IN_LIST found)
    list(APPEND found ${target})
    get_target_property(used ${target} LINK_LIBRARIES)
    foreach(other ${used})
      if(other MATCHES "^di_")
        di_closure(found ${other})
      endif()
    endforeach()
  endif()
  set(${out} ${found} PARENT_SCOPE)
endfunction()

di_closure(DI_ENGINE_MODULES di_engine)
set(DI_ENGINE_ARCHIVES ${DI_ENGINE_MODULES})
list(TRANSFORM DI_ENGINE_ARCHIVES REPLACE "(.+)" "$<TARGET_FILE:\\1>")
set(DI_LIB ${CMAKE_BINARY_DIR}/libdeepinfer)

add_custom_command(
  OUTPUT ${DI_LIB}.a
  COMMAND ${CMAKE_C_COMPILER} -r -nostdlib -o ${DI_LIB}.o -Wl,--whole-archive ${DI_ENGINE_ARCHIVES}
          -Wl,--no-whole-archive
  COMMAND ${CMAKE_OBJCOPY} -w --localize-hidden --keep-global-symbol=di_* ${DI_LIB}.o
  COMMAND ${CMAKE_COMMAND} -E rm -f ${DI_LIB}.a
  COMMAND ${CMAKE_AR} rcs ${DI_LIB}.a ${DI_LIB}.o
  DEPENDS ${DI_ENGINE_MODULES} ${DI_ENGINE_ARCHIVES}
  COMMAND_EXPAND_LISTS VERBATIM)
add_custom_target(deepinfer_static ALL DEPENDS ${DI_LIB}.a)

if(DI_SHARED)
  file(WRITE ${CMAKE_BINARY_DIR}/empty.c "")
  add_library(deepinfer_shared SHARED ${CMAKE_BINARY_DIR}/empty.c)
  set_target_properties(deepinfer_shared PROPERTIES OUTPUT_NAME deepinfer VERSION ${PROJECT_VERSION}
                        SOVERSION ${PROJECT_VERSION_MAJOR} LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
  target_link_options(deepinfer_shared PRIVATE -Wl,--no-undefined)
  target_link_libraries(deepinfer_shared PRIVATE -Wl,--whole-archive ${DI_ENGINE_MODULES}
                        -Wl,--no-whole-archive)
  install(TARGETS deepinfer_shared LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime
          NAMELINK_COMPONENT development)
  set(DI_PC_LIBS "Libs: -L\${libdir} -ldeepinfer\nLibs.private: -lm -pthread")
else()
  set(DI_PC_LIBS "Libs: -L\${libdir} -ldeepinfer -lm -pthread")
endif()

# Found from where it lies, so that prefix and staging folder may be chosen at installation.
file(RELATIVE_PATH DI_PC_UP ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" DI_PC_UP "${DI_PC_UP}")
configure_file(${PROJECT_SOURCE_DIR}/cmake/deepinfer.pc.in ${CMAKE_BINARY_DIR}/deepinfer.pc @ONLY)

install(TARGETS deepinfer RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT runtime)
if(DI_CUDA) # where the program looks for it: ../lib
  install(FILES ${CMAKE_BINARY_DIR}/libdeepinfer_cuda.so DESTINATION lib COMPONENT runtime)
endif()
install(FILES LICENSE README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT runtime)
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT runtime
        FILES_MATCHING PATTERN "*.md" PATTERN "*.svg")
install(FILES ${DI_LIB}.a DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
install(FILES ${CMAKE_BINARY_DIR}/deepinfer.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
        COMPONENT development)
install(DIRECTORY include/deepinfer DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development
        FILES_MATCHING PATTERN "*.h")
install(FILES examples/minimal.c DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples COMPONENT development)
