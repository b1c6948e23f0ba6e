// AVX2: bytes are multiplied in pairs into 16 bits. Four-bit weights keep eight such pairs below 2^15, so a whole group is
// summed there; pairs of eight-bit weights are widened at once.
#pragma GCC target("avx2,fma,f16c")
#include <immintrin.h>

#include "linear_tiles.h"

namespace slipstream {
namespace {

inline __m256i load(const uint8_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }

inline __m256 halves(const uint8_t* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

// Four inputs of a row, for all outputs.
inline __m256i four_inputs(const int8_t* from) {
    int32_t bits;
    __builtin_memcpy(&bits, from, sizeof bits);
    return _mm256_set1_epi32(bits);
}

inline __m256i low(__m256i bytes) { return _mm256_and_si256(bytes, _mm256_set1_epi8(15)); }
inline __m256i high(__m256i bytes) { return low(_mm256_srli_epi16(bytes, 4)); }
inline __m256i pairs(__m256i sum, __m256i weights, __m256i inputs) {
    return _mm256_add_epi16(sum, _mm256_maddubs_epi16(weights, inputs));
}
inline __m256i widened(__m256i sum) { return _mm256_madd_epi16(sum, _mm256_set1_epi16(1)); }

// What a group adds to a sum: its dots by the scales of weights and row, its minima by the row's total.
inline __m256 with_scales(__m256 sum, __m256i dots, __m256 scales, float factor) {
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots), _mm256_mul_ps(scales, _mm256_set1_ps(factor)), sum);
}

// Eight of a block's outputs at a time: the sums of six rows stay in registers so.
struct Avx2Tile {
    static constexpr int kMaxRows = 6;

    template <int R>
    static void four(const uint8_t* records, const TileRows<R>& rows, float* out) {
        for (int half = 0; half < 2; ++half) {
            const uint8_t* record = records;
            __m256 sums[R];
            for (int row = 0; row < R; ++row) sums[row] = _mm256_setzero_ps();
            for (int g = 0; g < rows.num_groups; ++g, record += record_bytes(Bits::four)) {
                const uint8_t* bytes = record + 2 * kHalves + 32 * half;
                __m256i dots[R];
                for (int row = 0; row < R; ++row) dots[row] = _mm256_setzero_si256();
                for (int p = 0; p < 4; ++p) {
                    const __m256i all = load(bytes + 64 * p), lower = low(all), upper = high(all);
                    for (int row = 0; row < R; ++row) {
                        dots[row] = pairs(dots[row], lower, four_inputs(rows.inputs(g, 2 * p, row)));
                        dots[row] = pairs(dots[row], upper, four_inputs(rows.inputs(g, 2 * p + 1, row)));
                    }
                }
                const __m256 scales = halves(record + 16 * half), minima = halves(record + kHalves + 16 * half);
                for (int row = 0; row < R; ++row) {
                    sums[row] = with_scales(sums[row], widened(dots[row]), scales, rows.scales[g * R + row]);
                    sums[row] = _mm256_fmadd_ps(minima, _mm256_set1_ps(rows.totals[g * R + row]), sums[row]);
                }
            }
            store<R>(sums, out + 8 * half);
        }
    }

    template <int R>
    static void eight(const uint8_t* records, const TileRows<R>& rows, float* out) {
        for (int half = 0; half < 2; ++half) {
            const uint8_t* record = records;
            __m256 sums[R];
            for (int row = 0; row < R; ++row) sums[row] = _mm256_setzero_ps();
            for (int g = 0; g < rows.num_groups; ++g, record += record_bytes(Bits::eight)) {
                const uint8_t* bytes = record + kHalves + 32 * half;
                __m256i dots[R];
                for (int row = 0; row < R; ++row) dots[row] = _mm256_setzero_si256();
                for (int p = 0; p < 8; ++p) {
                    const __m256i weights = _mm256_xor_si256(load(bytes + 64 * p), _mm256_set1_epi8(-128));
                    const __m256i magnitudes = _mm256_abs_epi8(weights);
                    for (int row = 0; row < R; ++row) {
                        const __m256i inputs = four_inputs(rows.inputs(g, p, row));
                        // 2 x 128 x 127 is below 2^15, so no pair is cut short.
                        const __m256i two = _mm256_maddubs_epi16(magnitudes, _mm256_sign_epi8(inputs, weights));
                        dots[row] = _mm256_add_epi32(dots[row], widened(two));
                    }
                }
                const __m256 scales = halves(record + 16 * half);
                for (int row = 0; row < R; ++row) {
                    sums[row] = with_scales(sums[row], dots[row], scales, rows.scales[g * R + row]);
                }
            }
            store<R>(sums, out + 8 * half);
        }
    }

    template <int R>
    static void store(const __m256 (&sums)[R], float* out) {
        for (int row = 0; row < R; ++row) _mm256_storeu_ps(out + row * kBlock, sums[row]);
    }
};

}  // namespace

void linear_avx2(const Weight& weight, const Rows& rows, int first, int last, const Output& output) {
    linear_by_tiles<Avx2Tile>(weight, rows, first, last, output);
}

}  // namespace slipstream
