/* The heap of what is due next. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "server/due_heap.h"

#define N 500

static uint32_t dice(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 16;
}

static void test_entries_come_by_time_then_by_order(void **state)
{
    due_heap h = {0};
    due_entry e[N] = {0};
    uint64_t last_ns = 0, last_order = 0;
    uint32_t seed = 1;
    di_status st = {0};

    (void)state;
    assert_int_equal(due_reserve(&h, N, &st), DI_OK);
    assert_null(due_first(&h));
    for (size_t i = 0; i < N; i++) {
        e[i] = (due_entry){.due_ns = 100 + dice(&seed) % 50, .order = i + 1};
        due_push(&h, &e[i]);
    }
    for (size_t i = 0; i < N; i++) {
        due_entry *first = due_first(&h);

        assert_ptr_equal(due_pop(&h), first);
        assert_int_equal(first->at, 0);
        assert_true(first->due_ns > last_ns ||
                    (first->due_ns == last_ns && first->order > last_order));
        last_ns = first->due_ns;
        last_order = first->order;
    }
    assert_null(due_first(&h));
    due_fini(&h);
}

static void test_a_hastened_entry_comes_first(void **state)
{
    due_heap h = {0};
    due_entry e[N] = {0};
    uint32_t seed = 7;
    di_status st = {0};

    (void)state;
    assert_int_equal(due_reserve(&h, N, &st), DI_OK);
    for (size_t i = 0; i < N; i++) {
        e[i] = (due_entry){.due_ns = 1000 + dice(&seed), .order = i};
        due_push(&h, &e[i]);
    }
    for (size_t i = 0; i < N; i += 3) {
        due_hasten(&h, &e[i], 5);
        assert_ptr_equal(due_pop(&h), &e[i]);
    }
    for (uint64_t last = 0; h.n;) {
        due_entry *first = due_pop(&h);

        assert_true(first->due_ns >= last);
        last = first->due_ns;
    }
    due_fini(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_entries_come_by_time_then_by_order),
        cmocka_unit_test(test_a_hastened_entry_comes_first),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
