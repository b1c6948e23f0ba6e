// AVX2: bytes are multiplied in pairs into 16 bits. Four-bit weights keep eight such pairs below 2^15, so a whole group is
// summed there; eight-bit weights are taken as two halves of four bits.
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

struct Avx2Tile {
    template <int R>
    static void four(const uint8_t* record, const Rows& rows, int num_groups, float* out) {
        __m256 sums[R][2];
        for (int row = 0; row < R; ++row) sums[row][0] = sums[row][1] = _mm256_setzero_ps();
        for (int g = 0; g < num_groups; ++g, record += record_bytes(Bits::four)) {
            const uint8_t* bytes = record + 2 * kHalves;
            __m256i dots[R][2];
            for (int row = 0; row < R; ++row) dots[row][0] = dots[row][1] = _mm256_setzero_si256();
            for (int p = 0; p < 4; ++p) {
                const __m256i left = load(bytes + 64 * p), right = load(bytes + 64 * p + 32);
                const __m256i low_left = low(left), low_right = low(right);
                const __m256i high_left = high(left), high_right = high(right);
                for (int row = 0; row < R; ++row) {
                    const int8_t* a = rows.values + (row * num_groups + g) * kGroup + 8 * p;
                    const __m256i first = four_inputs(a), second = four_inputs(a + 4);
                    dots[row][0] = pairs(pairs(dots[row][0], low_left, first), high_left, second);
                    dots[row][1] = pairs(pairs(dots[row][1], low_right, first), high_right, second);
                }
            }
            const __m256 scales[2] = {halves(record), halves(record + 16)};
            const __m256 minima[2] = {halves(record + kHalves), halves(record + kHalves + 16)};
            for (int row = 0; row < R; ++row) {
                const float factor = rows.scales[row * num_groups + g];
                const __m256 scale = _mm256_set1_ps(factor);
                const __m256 total = _mm256_set1_ps(factor * static_cast<float>(rows.sums[row * num_groups + g]));
                for (int half = 0; half < 2; ++half) {
                    const __m256 dot = _mm256_cvtepi32_ps(widened(dots[row][half]));
                    __m256& sum = sums[row][half];
                    sum = _mm256_fmadd_ps(dot, _mm256_mul_ps(scales[half], scale), sum);
                    sum = _mm256_fmadd_ps(minima[half], total, sum);
                }
            }
        }
        store<R>(sums, out);
    }

    template <int R>
    static void eight(const uint8_t* record, const Rows& rows, int num_groups, float* out) {
        __m256 sums[R][2];
        for (int row = 0; row < R; ++row) sums[row][0] = sums[row][1] = _mm256_setzero_ps();
        for (int g = 0; g < num_groups; ++g, record += record_bytes(Bits::eight)) {
            for (int half = 0; half < 2; ++half) {
                const uint8_t* bytes = record + kHalves + 32 * half;
                const __m256 scales = halves(record + 16 * half);
                __m256i lows[R], highs[R];
                for (int row = 0; row < R; ++row) lows[row] = highs[row] = _mm256_setzero_si256();
                for (int p = 0; p < 8; ++p) {
                    const __m256i all = load(bytes + 64 * p), lower = low(all), upper = high(all);
                    for (int row = 0; row < R; ++row) {
                        const __m256i inputs = four_inputs(rows.values + (row * num_groups + g) * kGroup + 4 * p);
                        lows[row] = pairs(lows[row], lower, inputs);
                        highs[row] = pairs(highs[row], upper, inputs);
                    }
                }
                for (int row = 0; row < R; ++row) {
                    const __m256i whole =
                        _mm256_add_epi32(widened(lows[row]), _mm256_slli_epi32(widened(highs[row]), 4));
                    const __m256i offset = _mm256_set1_epi32(128 * rows.sums[row * num_groups + g]);
                    const __m256 dot = _mm256_cvtepi32_ps(_mm256_sub_epi32(whole, offset));
                    const __m256 scale = _mm256_set1_ps(rows.scales[row * num_groups + g]);
                    sums[row][half] = _mm256_fmadd_ps(dot, _mm256_mul_ps(scales, scale), sums[row][half]);
                }
            }
        }
        store<R>(sums, out);
    }

    template <int R>
    static void store(const __m256 (&sums)[R][2], float* out) {
        for (int row = 0; row < R; ++row) {
            _mm256_store_ps(out + row * kBlock, sums[row][0]);
            _mm256_store_ps(out + row * kBlock + 8, sums[row][1]);
        }
    }
};

}  // namespace

void linear_avx2(const Weight& weight, const Rows& rows, int first, int last, const Output& output) {
    linear_by_tiles<Avx2Tile>(weight, rows, first, last, output);
}

}  // namespace slipstream
