/* test_quant.c: weight blocks, 16-bit floats, the quantize and embed operators. */
#include "blocks.h"

#include "freetoken/device/dot.h"

static void f16_to_f32_is_exact(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 65536; h++)
        assert_true(same_float(ftk_f16_to_f32((uint16_t)h), ref_half(h)));
}

/* Nearest by search among neighbours; ties to the even code. */
static uint32_t ref_to_half(float f) {
    uint32_t sign = bits_of(f) >> 16 & 0x8000u;
    double a = fabs((double)f);
    if (a >= 65520) return sign | 0x7c00u;
    uint32_t low = 0;
    uint32_t high = 0x7bff;
    while (low < high) {
        uint32_t middle = (low + high + 1) / 2;
        if ((double)ref_half(middle) <= a) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    double below = a - (double)ref_half(low);
    double above = (low == 0x7bff ? 65536.0 : (double)ref_half(low + 1)) - a;
    if (above < below || (above == below && low % 2)) low++;
    return sign | low;
}

static void f32_to_f16_rounds_to_even(void **state) {
    (void)state;
    uint64_t seed = 11;
    for (uint32_t h = 0; h < 0x7c00; h++) {
        double middle = ((double)ref_half(h) + (h == 0x7bff ? 65536.0 : (double)ref_half(h + 1))) /
                        2;
        float m = (float)middle;
        float around[] = {ref_half(h), m, nextafterf(m, 0), nextafterf(m, INFINITY)};
        for (size_t i = 0; i < COUNT(around); i++) {
            assert_int_equal(ftk_f32_to_f16(around[i]), ref_to_half(around[i]));
            assert_int_equal(ftk_f32_to_f16(-around[i]), ref_to_half(-around[i]));
        }
    }
    for (int i = 0; i < 200000; i++) {
        float f = from_bits(rnd(&seed));
        if (f == f) assert_int_equal(ftk_f32_to_f16(f), ref_to_half(f));
    }
    assert_int_equal(ftk_f32_to_f16(INFINITY), 0x7c00);
    assert_int_equal(ftk_f32_to_f16(from_bits(0xffc12345u)), 0xfe00);
    assert_int_equal(ftk_f32_to_f16(from_bits(1)), 0);
}

static void q4_k_vectors(void **state) {
    (void)state;
    static const uint8_t ones[12] = {1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1};
    static const uint8_t twos[12] = {1, 1, 1, 1, 2, 2, 2, 2, 0x21, 0x21, 0x21, 0x21};
    uint8_t b[144] = {0};
    float y[256];
    ftk_k_block k;
    put_half(b, 0x3c00);
    memcpy(b + 4, ones, 12);
    memset(b + 16, 0x21, 128);
    ftk_q4_k_decode(b, &k);
    ftk_k_values(&k, 1, y);
    for (int i = 0; i < 256; i++) assert_true(y[i] == (i / 32 % 2 ? 2.0f : 1.0f));
    put_half(b + 2, 0x3c00);
    memcpy(b + 4, twos, 12);
    ftk_q4_k_decode(b, &k);
    ftk_k_values(&k, 1, y);
    for (int i = 0; i < 256; i++) assert_true(y[i] == (i / 32 % 2 ? 0.0f : -1.0f));
    b[4] = 0xc1;
    b[8] = 0x80;
    assert_int_equal(ftk_k_scale(b + 4, 0), 1);
    assert_int_equal(ftk_k_scale(b + 4, 4), 1 + 48);
    assert_int_equal(ftk_k_min(b + 4, 0), 0);
    assert_int_equal(ftk_k_min(b + 4, 4), 2 + 32);
}

static void q5_k_high_bits(void **state) {
    (void)state;
    uint8_t b[176] = {0};
    ftk_k_block k;
    memset(b + 16, 0x01, 32);
    ftk_q5_k_decode(b, &k);
    for (int i = 0; i < 256; i++) assert_int_equal(k.q[i], i < 32 ? 16 : 0);
    memset(b + 16, 0x80, 32);
    ftk_q5_k_decode(b, &k);
    for (int i = 0; i < 256; i++) assert_int_equal(k.q[i], i >= 224 ? 16 : 0);
}

static void q6_k_vectors(void **state) {
    (void)state;
    static const struct {
        uint8_t low, high;
        float value;
    } cases[] = {{0, 0xaa, 0}, {0, 0xff, 16}, {0xff, 0xff, 31}, {0, 0, -32}};
    uint8_t b[210];
    float y[256];
    ftk_k_block k;
    memset(b + 192, 1, 16);
    put_half(b + 208, 0x3c00);
    for (size_t c = 0; c < COUNT(cases); c++) {
        memset(b, cases[c].low, 128);
        memset(b + 128, cases[c].high, 64);
        ftk_q6_k_decode(b, &k);
        ftk_k_values(&k, 0, y);
        for (int i = 0; i < 256; i++) assert_true(y[i] == cases[c].value);
    }
}

/* All 16 nibbles once in each half of a small block. */
static void put_all_nibbles(uint8_t *qs, uint32_t n) {
    for (uint32_t j = 0; j < n; j++) qs[j] = (uint8_t)(j % 16 | (15 - j % 16) << 4);
}

static void small_block_vectors(void **state) {
    (void)state;
    uint8_t b[24] = {0};
    float y[32];
    ftk_leaf leaf;
    put_half(b, 0x3800);     /* 0.5 */
    put_half(b + 2, 0xc000); /* -2 */
    put_all_nibbles(b + 4, 16);
    ftk_q4_1_decode(b, &leaf);
    ftk_leaf_values(&leaf, 1, y);
    for (int i = 0; i < 16; i++) {
        assert_true(y[i] == 0.5f * (float)i - 2.0f);
        assert_true(y[16 + i] == 0.5f * (float)(15 - i) - 2.0f);
    }
    put_all_nibbles(b + 2, 16);
    ftk_q4_0_decode(b, &leaf);
    ftk_leaf_values(&leaf, 0, y);
    for (int i = 0; i < 16; i++) assert_true(y[i] == 0.5f * (float)(i - 8));
    /* The fifth bits of values 0 and 31 alone. */
    memset(b + 2, 0, sizeof b - 2);
    b[2] = 0x01;
    b[5] = 0x80;
    ftk_q5_0_decode(b, &leaf);
    for (int i = 0; i < 32; i++) assert_int_equal(leaf.q[i], i == 0 || i == 31 ? 0 : -16);
    put_half(b + 2, 0x3c00);
    memcpy(b + 4, "\x01\x00\x00\x80", 4);
    ftk_q5_1_decode(b, &leaf);
    ftk_leaf_values(&leaf, 1, y);
    for (int i = 0; i < 32; i++) assert_true(y[i] == (i == 0 || i == 31 ? 9.0f : 1.0f));
    put_half(b, 0xbc00); /* -1 */
    put_all_nibbles(b + 2, 16);
    ftk_iq4_nl_decode(b, &leaf);
    ftk_leaf_values(&leaf, 0, y);
    assert_true(y[0] == 127.0f && y[8] == -1.0f && y[15] == -113.0f && y[16] == -113.0f);
}

static void q2_and_q3_k_vectors(void **state) {
    (void)state;
    uint8_t b[110] = {0};
    float y[256];
    ftk_k_block k;
    /* Each 16 values: q 0..3 by quarter of a half, scale 1, minimum 2, d 1, dmin 0.5. */
    memset(b, 0x21, 16);
    memset(b + 16, 0xe4, 64);
    put_half(b + 80, 0x3c00);
    put_half(b + 82, 0x3800);
    ftk_q2_k_decode(b, &k);
    ftk_k_values(&k, 1, y);
    for (int i = 0; i < 256; i++) assert_true(y[i] == (float)(i / 32 % 4) - 1.0f);
    /* Q3_K: the high bits of the first half set; scales 0x21 = 33: one. */
    memset(b, 0x0f, 32);
    memset(b + 32, 0xe4, 64);
    memset(b + 96, 0x11, 8);
    memset(b + 104, 0xaa, 4);
    put_half(b + 108, 0x4000);
    ftk_q3_k_decode(b, &k);
    ftk_k_values(&k, 0, y);
    for (int i = 0; i < 256; i++)
        assert_true(y[i] == 2.0f * (float)(i / 32 % 4 - (i < 128 ? 0 : 4)));
    /* Two bits of byte 8 + k % 4 belong to scale k. */
    memset(b + 96, 0, 12);
    b[96 + 8 + 1] = 3 << 4;
    for (uint32_t j = 0; j < 16; j++)
        assert_int_equal(ftk_q3_k_scale(b + 96, j), j == 9 ? 48 - 32 : -32);
}

static void iq4_xs_vector(void **state) {
    (void)state;
    uint8_t b[136];
    float y[256];
    ftk_k_block k;
    put_half(b, 0x3c00);
    put_half(b + 2, 0xaaaa);
    memset(b + 4, 0x11, 4); /* 1 | 2 << 4, less 32: 1 */
    put_all_nibbles(b + 8, 128);
    ftk_iq4_xs_decode(b, &k);
    ftk_k_values(&k, 0, y);
    for (int i = 0; i < 256; i++)
        assert_true(y[i] == (float)iq4_codes[i % 32 < 16 ? i % 16 : 15 - i % 16]);
    put_half(b + 2, 0xaaaa ^ 0x4000); /* the last sub-block's pair: 3 */
    b[4] = 0x1f;                      /* the first one's low four */
    ftk_iq4_xs_decode(b, &k);
    for (int j = 0; j < 16; j++)
        assert_int_equal(k.scale[j], j < 2 ? 15 : j >= 14 ? 1 + 48 - 32 : 1);
}

static void fp4_scales(void **state) {
    (void)state;
    for (int e = 0; e < 256; e++) {
        assert_true(
            same_float(ftk_e8m0_half((uint8_t)e), (float)ldexp(e == 255 ? NAN : 1, e - 128)));
        float wanted = e == 0x7f ? 0
                                 : (float)(e % 128 / 8 ? ldexp(8 + e % 8, e % 128 / 8 - 11)
                                                       : ldexp(e % 8, -10));
        assert_true(ftk_ue4m3_half((uint8_t)e) == wanted);
    }
    for (uint32_t n = 0; n < 16; n++) {
        assert_int_equal(ftk_e2m1_code(n), e2m1_doubled((int)n));
        assert_int_equal(ftk_iq4_code(n), iq4_codes[n]);
    }
}

static void fp4_vectors(void **state) {
    (void)state;
    uint8_t b[36] = {128};
    float y[64];
    ftk_leaf leaf;
    ftk_nv_block nv;
    b[1] = 0xf2;
    ftk_mxfp4_decode(b, &leaf);
    ftk_leaf_values(&leaf, 0, y);
    assert_true(y[0] == 2.0f && y[16] == -12.0f && y[1] == 0.0f);
    b[0] = 255;
    ftk_mxfp4_decode(b, &leaf);
    ftk_leaf_values(&leaf, 0, y);
    for (int i = 0; i < 32; i++) assert_true(y[i] != y[i]);
    /* Scales 1, 2^-9, 448 and the code of NaN. */
    memcpy(b, "\x38\x01\x7e\x7f", 4);
    memset(b + 4, 0xf2, 32);
    ftk_nvfp4_decode(b, &nv);
    ftk_nv_values(&nv, y);
    static const float scales[] = {1, 0.001953125f, 448, 0};
    for (int i = 0; i < 64; i++) assert_true(y[i] == scales[i / 16] * (i % 16 < 8 ? 1.0f : -6.0f));
}

static void q8_0_vector(void **state) {
    (void)state;
    float x[32];
    int8_t q[32];
    for (int i = 0; i < 32; i++) x[i] = (float)i;
    float d = ftk_quantize(x, 32, q);
    assert_true(d == 31.0f / 127.0f);
    assert_int_equal(ftk_f32_to_f16(d), 0x33d0);
    assert_int_equal(q[31], 127);
    assert_int_equal(q[0], 0);
    assert_int_equal(q[1], 4);
    assert_int_equal(q[16], 66);
}

/* ---- the quantize operator ---- */

static const char *const kinds[] = {"random", "wide",      "zero",     "negative zero", "denormal",
                                    "tiny",   "at 2^-100", "ties",     "largest",       "infinity",
                                    "nan",    "one spike", "near ties"};

/* Values whose last bits decide how they round: x * (1 / d) and x / d differ. */
static float near_tie(size_t i, uint64_t *seed) {
    const float max = 1.0f + 0.001f * (float)(i / 4096 % 500);
    if (i % 32 == 0) return max;
    float d = max / 127.0f;
    float tie = d * ((float)rnd_below(seed, 127) + 0.5f);
    uint32_t shift = rnd_below(seed, 3);
    return shift == 0 ? tie : nextafterf(tie, shift == 1 ? 0.0f : 2.0f);
}

static void fill_kind(size_t kind, float *x, size_t n, uint64_t *seed) {
    for (size_t i = 0; i < n; i++) {
        float u = rnd_unit(seed);
        switch (kind) {
        case 1: u = ldexpf(u, (int)rnd_below(seed, 60) - 30); break;
        case 2: u = 0; break;
        case 3: u = -0.0f; break;
        case 4: u = from_bits(rnd(seed) & 0x807fffffu); break;
        case 5: u = ldexpf(u, -100); break;
        case 6: u = i % 32 == 5 ? ldexpf(1, -100) : ldexpf(u, -101); break;
        case 7: u = i % 32 == 0 ? 127.0f : (float)rnd_below(seed, 254) - 126.5f; break;
        case 8: u = rnd_below(seed, 2) ? 3.40282347e38f : -3.40282347e38f; break;
        case 9: u = i % 300 == 100 ? -INFINITY : u; break;
        case 10: u = i % 300 == 31 ? from_bits(0x7f800001u) : u; break;
        case 11: u = i % 64 == 63 ? 1e20f : u; break;
        case 12: u = near_tie(i, seed); break;
        default: break;
        }
        x[i] = u;
    }
}

static void check_part(const float *x, uint32_t cols, uint32_t n, const uint8_t *part,
                       const char *kind) {
    const int8_t *q = (const int8_t *)part;
    int wanted[256];
    for (uint32_t b = 0; b < cols / n; b++) {
        float d;
        memcpy(&d, part + cols + 4 * (size_t)b, 4);
        float wanted_d = ref_quantize(x + (size_t)b * n, n, wanted);
        if (!same_float(d, wanted_d))
            fail_msg("%s: scale %a, wanted %a", kind, (double)d, (double)wanted_d);
        int sum = 0;
        for (uint32_t i = 0; i < n; i++) {
            if (q[b * n + i] != wanted[i])
                fail_msg("%s: q %d, wanted %d", kind, q[b * n + i], wanted[i]);
            sum += wanted[i];
            if (n == 32 || i % 16 != 15) continue;
            int16_t s;
            memcpy(&s, part + cols + cols / 64 + (b * 256 + i) / 16 * 2, 2);
            assert_int_equal(s, sum);
            sum = 0;
        }
    }
}

static void quantize_case(rig *r, size_t kind, uint32_t cols, uint32_t rows, uint32_t formats) {
    uint64_t seed = 77 + kind;
    uint64_t stride = cols + 16;
    float *x = malloc(rows * stride * sizeof *x);
    uint64_t bytes = r->op->activation_bytes(formats, rows, cols);
    guarded packed = guarded_new(bytes);
    fill_kind(kind, x, rows * stride, &seed);
    assert_int_equal(bytes % 64, 0);
    ftk_op_quantize op = {{x, packed.data, stride, rows, cols, formats, 0}};
    assert_int_equal(r->op->quantize(r->stream, &op), FTK_OK);
    for (uint32_t i = 0; i < rows; i++) {
        const uint8_t *row = (uint8_t *)packed.data + i * ftk_act_row_bytes(formats, cols);
        if (formats & FTK_ACT_A32) check_part(x + i * stride, cols, 32, row, kinds[kind]);
        if (formats & FTK_ACT_A256)
            check_part(x + i * stride, cols, 256, row + ftk_act_offset(formats, FTK_ACT_A256, cols),
                       kinds[kind]);
    }
    guarded_free(&packed);
    free(x);
}

static void quantize_follows_the_definition(void **state) {
    (void)state;
    static const uint32_t cols[] = {32, 64, 96, 256, 288, 512, 2048, 4096};
    static const uint32_t rows[] = {1, 3, 70};
    for (size_t s = 0; s < COUNT(setups); s++) {
        rig r = rig_open(s);
        for (size_t kind = 0; kind < COUNT(kinds); kind++)
            for (size_t c = 0; c < COUNT(cols); c++)
                for (uint32_t formats = 1; formats <= 3; formats++) {
                    if (formats > 1 && cols[c] % 256) continue;
                    quantize_case(&r, kind, cols[c], cols[c] > 512 ? 3 : rows[kind % 3], formats);
                }
        rig_close(&r);
    }
}

static void quantize_refuses(void **state) {
    (void)state;
    rig r = rig_open(0);
    float x[512];
    guarded packed = guarded_new(4096);
    const ftk_activation good = {x, packed.data, 256, 1, 256, 3, 0};
    ftk_activation bad[6] = {good, good, good, good, good, good};
    bad[0].x = NULL;
    bad[1].packed = NULL;
    bad[2].packed = (uint8_t *)packed.data + 4;
    bad[3].cols = 288;
    bad[4].formats = 4;
    bad[5].x_stride = 255;
    memset(x, 0, sizeof x);
    for (size_t i = 0; i < COUNT(bad); i++) {
        ftk_op_quantize op = {bad[i]};
        assert_int_equal(r.op->quantize(r.stream, &op), FTK_E_ARGUMENT);
    }
    for (size_t i = 0; i < packed.bytes; i++) assert_int_equal(((uint8_t *)packed.data)[i], 0xa5);
    ftk_op_quantize op = {good};
    assert_int_equal(r.op->quantize(r.stream, &op), FTK_OK);
    guarded_free(&packed);
    rig_close(&r);
}

static void formats_of_types(void **state) {
    (void)state;
    rig r = rig_open(0);
    for (uint32_t type = 0; type < 100; type++) {
        uint32_t format = 99;
        const block_type *known = NULL;
        for (size_t t = 0; t < COUNT(block_types); t++)
            if (block_types[t].type == type) known = &block_types[t];
        assert_int_equal(r.op->activation_format(type, &format),
                         known ? FTK_OK : FTK_E_UNSUPPORTED);
        if (known)
            assert_int_equal(format, known->elements == 1    ? 0
                                     : known->elements < 256 ? FTK_ACT_A32
                                                             : FTK_ACT_A256);
    }
    rig_close(&r);
}

static void embed_case(rig *r, const block_type *t, uint32_t cols) {
    enum { VOCABULARY = 7, ROWS = 5 };
    uint64_t seed = 5 + t->type;
    uint64_t row_bytes = cols / t->elements * t->bytes;
    uint8_t *table = malloc(VOCABULARY * row_bytes);
    int32_t tokens[ROWS] = {6, 0, -1, VOCABULARY, 3};
    uint64_t stride = cols + 3;
    guarded g;
    float *y = guarded_floats(&g, ROWS * stride);
    fill_weights(t, table, VOCABULARY, cols, &seed);
    ftk_weight w = {sizeof w, t->type, FTK_LAYOUT_RAW, 0, VOCABULARY, cols, row_bytes, table};
    ftk_op_embed op = {&w, tokens, y, stride, ROWS, 0};
    assert_int_equal(r->op->embed(r->stream, &op), FTK_OK);
    for (uint32_t i = 0; i < ROWS; i++) {
        bool known = tokens[i] >= 0 && tokens[i] < VOCABULARY;
        for (uint32_t c = 0; c < cols; c++) {
            float wanted = known ? value_of(t->type, table + (uint32_t)tokens[i] * row_bytes, c)
                                 : 0;
            assert_true(same_float(y[i * stride + c], wanted));
        }
        for (uint32_t c = 0; c < 3; c++)
            assert_int_equal(bits_of(y[i * stride + cols + c]), 0xa5a5a5a5u);
    }
    guarded_free(&g);
    free(table);
}

static void embed_decodes_every_type(void **state) {
    (void)state;
    for (size_t s = 0; s < COUNT(setups); s++) {
        rig r = rig_open(s);
        for (size_t t = 0; t < COUNT(block_types); t++) {
            embed_case(&r, &block_types[t], 256);
            embed_case(&r, &block_types[t], 2048);
            if (block_types[t].elements <= 32) embed_case(&r, &block_types[t], 288);
            if (block_types[t].elements <= 64) embed_case(&r, &block_types[t], 320);
            if (block_types[t].elements == 1) embed_case(&r, &block_types[t], 263);
        }
        rig_close(&r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f16_to_f32_is_exact),
        cmocka_unit_test(f32_to_f16_rounds_to_even),
        cmocka_unit_test(q4_k_vectors),
        cmocka_unit_test(q5_k_high_bits),
        cmocka_unit_test(q6_k_vectors),
        cmocka_unit_test(small_block_vectors),
        cmocka_unit_test(q2_and_q3_k_vectors),
        cmocka_unit_test(iq4_xs_vector),
        cmocka_unit_test(fp4_scales),
        cmocka_unit_test(fp4_vectors),
        cmocka_unit_test(q8_0_vector),
        cmocka_unit_test(quantize_follows_the_definition),
        cmocka_unit_test(quantize_refuses),
        cmocka_unit_test(formats_of_types),
        cmocka_unit_test(embed_decodes_every_type),
    };
    return cmocka_run_group_tests_name("test_quant", tests, NULL, NULL);
}
