# Test data that is kept compressed: unpacked into the build folder by the build.
#
#   di_unpack(recipe/tokenizer.jsonl.xz)
#
# takes tests/data/recipe/tokenizer.jsonl.xz and puts build/<preset>/data/recipe/tokenizer.jsonl
# there. All of it hangs on the target di_data, which every di_test depends on; C tests find the
# folder in the macro DI_DATA_DIR. Naming a file twice is fine.

find_program(DI_XZ xz REQUIRED)
set(DI_DATA_DIR ${CMAKE_BINARY_DIR}/data)
if(NOT TARGET di_data)
  add_custom_target(di_data ALL)
endif()

function(di_unpack)
  foreach(file ${ARGN})
    set(packed ${PROJECT_SOURCE_DIR}/tests/data/${file})
    if(NOT file MATCHES "\\.xz$" OR NOT EXISTS ${packed})
      message(FATAL_ERROR "di_unpack(${file}): ${packed} is not a compressed file of tests/data")
    endif()
    string(REGEX REPLACE "\\.xz$" "" plain ${file})
    string(MAKE_C_IDENTIFIER "di_data_${plain}" target)
    if(TARGET ${target})
      continue()
    endif()
    set(out ${DI_DATA_DIR}/${plain})
    get_filename_component(dir ${out} DIRECTORY)
    add_custom_command(
      OUTPUT ${out}
      COMMAND ${CMAKE_COMMAND} -E make_directory ${dir}
      COMMAND ${DI_XZ} -dc ${packed} > ${out}.part
      COMMAND ${CMAKE_COMMAND} -E rename ${out}.part ${out}
      DEPENDS ${packed}
      COMMENT "Unpacking ${plain}"
      VERBATIM)
    add_custom_target(${target} DEPENDS ${out})
    add_dependencies(di_data ${target})
  endforeach()
endfunction()
