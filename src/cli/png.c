/* A PNG file without a library: rows as differences to the row above, in one deflate block of the
 * fixed Huffman code whose only matches are runs. Charts are mostly empty, so that is enough. */
#include "base/mem.h"
#include "cli/canvas.h"

#define MAX_RUN 258

static void put_u32(str *s, uint32_t v)
{
    for (int shift = 24; shift >= 0; shift -= 8)
        str_putc(s, (char)(uint8_t)(v >> shift));
}

static uint32_t crc_of(const char *bytes, size_t n)
{
    uint32_t crc = 0xFFFFFFFFu;

    for (size_t i = 0; i < n; i++) {
        crc ^= (uint8_t)bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
    }
    return ~crc;
}

/* A chunk of the file: length, type and data, checksum. */
static void put_chunk(str *out, const char type[4], const str *data)
{
    size_t at = out->len + 4;

    put_u32(out, (uint32_t)data->len);
    str_append(out, type, 4);
    str_append(out, str_text(data), data->len);
    if (str_ok(out))
        put_u32(out, crc_of(out->data + at, out->len - at));
}

/* Bits of a deflate stream, lowest first. */
typedef struct bits {
    str *out;
    uint32_t held;
    int n;
} bits;

static void put_bits(bits *b, uint32_t value, int n)
{
    b->held |= value << b->n;
    for (b->n += n; b->n >= 8; b->n -= 8) {
        str_putc(b->out, (char)(uint8_t)b->held);
        b->held >>= 8;
    }
}

/* Huffman codes go in with their highest bit first. */
static void put_code(bits *b, uint32_t code, int n)
{
    for (int i = n - 1; i >= 0; i--)
        put_bits(b, code >> i & 1, 1);
}

/* A literal or length symbol of the fixed code (RFC 1951, 3.2.6). */
static void put_symbol(bits *b, uint32_t s)
{
    if (s < 144)
        put_code(b, 0x30 + s, 8);
    else if (s < 256)
        put_code(b, 0x190 + s - 144, 9);
    else if (s < 280)
        put_code(b, s - 256, 7);
    else
        put_code(b, 0xC0 + s - 280, 8);
}

/* "the last byte again, n times", 3 <= n <= 258: a length code with its extra bits, distance 1. */
static void put_match(bits *b, int n)
{
    static const int base[] = {3,  4,  5,  6,  7,  8,  9,  10, 11,  13,  15,  17,  19,  23, 27,
                               31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
    int code = (int)ARRAY_LEN(base) - 1, extra;

    while (base[code] > n)
        code--;
    extra = code < 8 || n == MAX_RUN ? 0 : code / 4 - 1;
    put_symbol(b, 257 + (uint32_t)code);
    put_bits(b, (uint32_t)(n - base[code]), extra);
    put_code(b, 0, 5);
}

static void put_run(bits *b, size_t run, uint8_t byte)
{
    while (run >= 3) {
        int n = run > MAX_RUN ? MAX_RUN : (int)run;

        put_match(b, n);
        run -= (size_t)n;
    }
    for (; run > 0; run--)
        put_symbol(b, byte);
}

static void deflate_bytes(str *out, const uint8_t *p, size_t n)
{
    bits b = {.out = out};

    put_bits(&b, 1, 1); /* the last block */
    put_bits(&b, 1, 2); /* fixed code */
    for (size_t i = 0; i < n;) {
        size_t run = 0;

        put_symbol(&b, p[i]);
        while (i + 1 + run < n && p[i + 1 + run] == p[i])
            run++;
        put_run(&b, run, p[i]);
        i += 1 + run;
    }
    put_symbol(&b, 256);
    put_bits(&b, 0, 7);
}

static uint32_t adler_of(const uint8_t *p, size_t n)
{
    uint32_t a = 1, b = 0;

    for (size_t i = 0; i < n; i++) {
        a = (a + p[i]) % 65521;
        b = (b + a) % 65521;
    }
    return b << 16 | a;
}

/* Filter bytes and differences to the row above. */
static void filter_rows(uint8_t *out, const uint8_t *rgb, int width, int height)
{
    size_t row = (size_t)width * 3;

    for (int y = 0; y < height; y++) {
        *out++ = 2; /* up */
        for (size_t i = 0; i < row; i++, rgb++)
            *out++ = (uint8_t)(*rgb - (y > 0 ? *(rgb - row) : 0));
    }
}

void png_encode(str *out, const uint8_t *rgb, int width, int height)
{
    size_t n = ((size_t)width * 3 + 1) * (size_t)height;
    uint8_t *rows = mem_try_calloc(n, 1);
    str part = {0};

    str_append(out, "\x89PNG\r\n\x1A\n", 8);
    put_u32(&part, (uint32_t)width);
    put_u32(&part, (uint32_t)height);
    str_append(&part, "\x08\x02\0\0\0", 5); /* 8 bits, RGB */
    put_chunk(out, "IHDR", &part);
    str_clear(&part);
    str_append(&part, "\x78\x01", 2);
    if (rows) {
        filter_rows(rows, rgb, width, height);
        deflate_bytes(&part, rows, n);
        put_u32(&part, adler_of(rows, n));
    }
    put_chunk(out, "IDAT", &part);
    out->failed = out->failed || !rows || !str_ok(&part);
    str_clear(&part);
    put_chunk(out, "IEND", &part);
    mem_free(rows);
    str_fini(&part);
}
