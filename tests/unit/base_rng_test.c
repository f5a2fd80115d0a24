/* Philox 4x32-10 against the known answers of the Random123 package. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/rng.h"
#include "base/status.h"

static void test_philox_gives_the_known_answers(void **state)
{
    static const struct {
        uint32_t ctr[4], key[2], want[4];
    } cases[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        philox_block ctr = {{cases[i].ctr[0], cases[i].ctr[1], cases[i].ctr[2], cases[i].ctr[3]}};
        philox_block got = philox4x32(ctr, cases[i].key[0], cases[i].key[1]);

        for (int k = 0; k < 4; k++)
            assert_int_equal(got.v[k], cases[i].want[k]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_philox_gives_the_known_answers)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
