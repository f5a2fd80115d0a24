/* Files, log lines, progress lines, processor. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/progress.h"

static char dir[] = "/tmp/di-file-test-XXXXXX";
static char path[64];

static int make_dir(void **state)
{
    (void)state;
    if (!mkdtemp(dir))
        return -1;
    snprintf(path, sizeof path, "%s/file", dir);
    return 0;
}

static int remove_dir(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(dir);
}

static void write_file(const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void test_map_shows_the_file_and_survives_dropping_pages(void **state)
{
    static unsigned char data[100000];
    file_map m;

    (void)state;
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * 31);
    write_file(data, sizeof data);
    assert_int_equal(file_map_open(&m, path, NULL), DI_OK);
    assert_int_equal(m.bytes, sizeof data);
    assert_memory_equal(m.data, data, sizeof data);
    file_map_drop(&m, 5000, 40000);
    file_map_drop(&m, 99999, SIZE_MAX); /* cut at the end of the map */
    file_map_drop(&m, 200000, 1);
    assert_memory_equal(m.data, data, sizeof data);
    file_map_close(&m);
    assert_null(m.data);
    file_map_close(&m);
}

static void test_map_of_an_empty_file_is_empty(void **state)
{
    file_map m = {.bytes = 1};

    (void)state;
    write_file("", 0);
    assert_int_equal(file_map_open(&m, path, NULL), DI_OK);
    assert_null(m.data);
    assert_int_equal(m.bytes, 0);
    file_map_drop(&m, 0, 10);
    file_map_close(&m);
}

static void test_what_cannot_be_opened_is_named(void **state)
{
    static const char *const paths[] = {"/nonexistent/file", "/tmp"};

    (void)state;
    for (int i = 0; i < 2; i++) {
        di_status st = {0};
        file_map m;
        char *text;
        size_t n;

        assert_int_equal(file_map_open(&m, paths[i], &st), DI_E_IO);
        assert_non_null(strstr(st.message, paths[i]));
        di_clear(&st);
        assert_int_equal(file_read(&text, &n, paths[i], 10, &st), DI_E_IO);
        assert_non_null(strstr(st.message, paths[i]));
        assert_null(text);
    }
}

/* The alarm ends the test where a call waits for a writer that never comes. */
static void test_a_pipe_or_device_is_refused_without_waiting(void **state)
{
    char fifo[80];
    const char *const paths[] = {"/dev/null", fifo};

    (void)state;
    snprintf(fifo, sizeof fifo, "%s/fifo", dir);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    alarm(10);
    for (int i = 0; i < 2; i++) {
        di_status st = {0};
        file_map m;
        char *text;
        size_t n;

        assert_int_equal(file_map_open(&m, paths[i], &st), DI_E_IO);
        assert_non_null(strstr(st.message, "regular file"));
        di_clear(&st);
        assert_int_equal(file_read(&text, &n, paths[i], 10, &st), DI_E_IO);
        assert_non_null(strstr(st.message, "regular file"));
        assert_true(file_is_stream(paths[i]));
    }
    alarm(0);
    assert_int_equal(unlink(fifo), 0);
    assert_false(file_is_stream(dir));
    assert_false(file_is_stream("/nonexistent/file"));
}

static void test_a_stream_is_read_when_asked_for(void **state)
{
    char name[32], *text;
    int ends[2];
    size_t n;

    (void)state;
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], "words", 5), 5);
    assert_int_equal(close(ends[1]), 0);
    snprintf(name, sizeof name, "/dev/fd/%d", ends[0]);
    assert_true(file_is_stream(name));
    assert_int_equal(file_read_stream(&text, &n, name, 10, NULL), DI_OK);
    assert_int_equal(n, 5);
    assert_string_equal(text, "words");
    mem_free(text);
    assert_int_equal(close(ends[0]), 0);
}

static void test_read_gives_the_whole_file_up_to_the_limit(void **state)
{
    static char data[10000];
    char *text;
    size_t n;

    (void)state;
    memset(data, 'x', sizeof data);
    for (size_t size = 0; size <= sizeof data; size += 2500) {
        di_status st = {0};

        write_file(data, size);
        assert_int_equal(file_read(&text, &n, path, size, &st), DI_OK);
        assert_int_equal(n, size);
        assert_int_equal(strlen(text), size);
        mem_free(text);
        assert_int_equal(file_read(&text, &n, path, SIZE_MAX, &st), DI_OK);
        assert_int_equal(n, size);
        mem_free(text);
        if (size) {
            assert_int_equal(file_read(&text, &n, path, size - 1, &st), DI_E_FORMAT);
            assert_non_null(strstr(st.message, "larger than"));
        }
    }
}

static void test_read_takes_files_whose_size_is_not_told(void **state)
{
    char *text;
    size_t n;

    (void)state;
    assert_int_equal(file_read(&text, &n, "/proc/self/status", 1 << 20, NULL), DI_OK);
    assert_true(n > 100 && strlen(text) == n);
    mem_free(text);
    assert_int_equal(file_read_stream(&text, &n, "/dev/zero", 100000, NULL), DI_E_FORMAT);
}

static void test_read_reports_no_memory(void **state)
{
    char *text;
    size_t n;

    (void)state;
    write_file("abc", 3);
    mem_fail_at(1);
    assert_int_equal(file_read(&text, &n, path, 100, NULL), DI_E_NOMEM);
    mem_fail_at(0);
}

static void test_path_join_refuses_what_does_not_fit(void **state)
{
    di_status st = {0};
    char out[8];

    (void)state;
    assert_int_equal(path_join(out, sizeof out, "abc", "def", &st), DI_OK);
    assert_string_equal(out, "abc/def");
    assert_int_equal(path_join(out, sizeof out, "abc", "defg", &st), DI_E_INVALID);
}

/* Run fn with standard error going to the file; the text it wrote. */
static char *stderr_of(void (*fn)(void))
{
    int saved = dup(STDERR_FILENO);
    FILE *f = fopen(path, "wb");
    char *text;
    size_t n;

    assert_non_null(f);
    assert_true(dup2(fileno(f), STDERR_FILENO) >= 0);
    fn();
    dup2(saved, STDERR_FILENO);
    close(saved);
    fclose(f);
    assert_int_equal(file_read(&text, &n, path, 1 << 20, NULL), DI_OK);
    return text;
}

static void log_some(void)
{
    log_set_level(LOG_INFO);
    log_info(LOG_KV, "block=%d", 7);
    log_debug(LOG_KV, "dropped");
    log_error(LOG_LOAD, "%01500d", 0); /* longer than a line may be */
    log_set_level(LOG_WARN);
    log_info(LOG_KV, "dropped too");
}

static void test_log_lines_carry_level_and_area_and_obey_the_level(void **state)
{
    char *text = stderr_of(log_some);

    (void)state;
    assert_memory_equal(text, "info  kv     block=7\n", 21);
    assert_non_null(strstr(text, "\nerror load   000"));
    assert_int_equal(text[strlen(text) - 1], '\n');
    assert_null(strstr(text, "dropped"));
    mem_free(text);
}

static void progress_on_a_terminal(void)
{
    progress p;

    progress_start(&p, "loading", "B", 4 << 20, false);
    p.tty = true;
    p.shown_ns = 0; /* a drawing is due at once */
    progress_note(&p, "12.3 tok/s");
    progress_set(&p, 1 << 20);
    progress_set(&p, 2 << 20); /* too soon */
    progress_set(&p, 4 << 20);
    progress_end(&p);
}

static void test_progress_draws_a_bar_and_its_last_state(void **state)
{
    char *text = stderr_of(progress_on_a_terminal);

    (void)state;
    assert_non_null(strstr(text, "\rloading [######..................]  25% 1.0 MiB of 4.0 MiB, "));
    assert_null(strstr(text, " 50%"));
    assert_non_null(strstr(text, "\rloading [########################] 100% 4.0 MiB of 4.0 MiB, "));
    assert_non_null(strstr(text, ", 12.3 tok/s\x1b[K\n"));
    mem_free(text);
}

static void progress_in_a_log(void)
{
    progress p;

    progress_start(&p, "prompts", "prompts", 10, false);
    p.tty = false;
    p.shown_ns = 0;
    progress_set(&p, 5);
    progress_end(&p);
    progress_start(&p, "quiet", "B", 10, true);
    p.shown_ns = 0;
    progress_set(&p, 5);
    progress_end(&p);
}

static void test_progress_writes_plain_lines_to_a_log_and_nothing_when_quiet(void **state)
{
    char *text = stderr_of(progress_in_a_log);

    (void)state;
    assert_memory_equal(text, "prompts 50% 5 prompts of 10 prompts, ", 37);
    assert_null(strchr(text, '\r'));
    assert_null(strstr(text, "quiet"));
    mem_free(text);
}

static void test_clock_goes_forward(void **state)
{
    uint64_t t = clock_ns();

    (void)state;
    usleep(2000);
    assert_true(clock_ns() - t >= 2000000);
}

static void test_processor_features_imply_each_other(void **state)
{
    const cpu_features *f = cpu_get();

    (void)state;
    assert_true(cpu_count() >= 1);
    assert_true(strlen(cpu_name()) > 0);
    assert_true(f->avx2 || !f->avx512);
    assert_true(f->avx512 || !(f->avx512_bf16 || f->avx512_vnni));
#if defined(__x86_64__)
    assert_int_equal(f->avx2, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
    assert_int_equal(f->avx512_vnni, __builtin_cpu_supports("avx512vnni") && f->avx512);
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_map_shows_the_file_and_survives_dropping_pages),
        cmocka_unit_test(test_map_of_an_empty_file_is_empty),
        cmocka_unit_test(test_what_cannot_be_opened_is_named),
        cmocka_unit_test(test_a_pipe_or_device_is_refused_without_waiting),
        cmocka_unit_test(test_a_stream_is_read_when_asked_for),
        cmocka_unit_test(test_read_gives_the_whole_file_up_to_the_limit),
        cmocka_unit_test(test_read_takes_files_whose_size_is_not_told),
        cmocka_unit_test(test_read_reports_no_memory),
        cmocka_unit_test(test_path_join_refuses_what_does_not_fit),
        cmocka_unit_test(test_log_lines_carry_level_and_area_and_obey_the_level),
        cmocka_unit_test(test_progress_draws_a_bar_and_its_last_state),
        cmocka_unit_test(test_progress_writes_plain_lines_to_a_log_and_nothing_when_quiet),
        cmocka_unit_test(test_clock_goes_forward),
        cmocka_unit_test(test_processor_features_imply_each_other),
    };

    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
