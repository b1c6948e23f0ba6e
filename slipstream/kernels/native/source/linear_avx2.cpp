// AVX2: bytes are multiplied in pairs into 16 bits. Four-bit weights keep eight such pairs below 2^15, so a whole group is
// summed there; pairs of eight-bit weights are widened at once.
#if defined(__x86_64__)
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

// Sixteen registers hold the dots of four rows and two halves of a block, its weights and little else; sums are touched
// once a group. Loops over `p` are not unrolled, or the compiler fetches ahead and runs out of registers.
struct Avx2Tile {
    static constexpr int kMaxRows = 4;

    template <int R>
    static void four(const uint8_t* record, TileRows<R> rows, float* out) {
        __m256 sums[R][2];
        for (int row = 0; row < R; ++row) sums[row][0] = sums[row][1] = _mm256_setzero_ps();
        for (int g = 0; g < rows.num_groups; ++g, record += record_bytes(Bits::four), rows.step()) {
            __m256i dots[R][2];
            for (int row = 0; row < R; ++row) dots[row][0] = dots[row][1] = _mm256_setzero_si256();
            const uint8_t* bytes = record + 2 * kHalves;
            const int8_t* inputs = rows.values;
#pragma GCC unroll 1
            for (int p = 0; p < 4; ++p, bytes += 64, inputs += 8 * R) {
                const __m256i left = load(bytes), right = load(bytes + 32);
                const __m256i low_left = low(left), low_right = low(right);
                const __m256i high_left = high(left), high_right = high(right);
                for (int row = 0; row < R; ++row) {
                    const __m256i first = four_inputs(inputs + 4 * row);
                    dots[row][0] = pairs(dots[row][0], low_left, first);
                    dots[row][1] = pairs(dots[row][1], low_right, first);
                    const __m256i second = four_inputs(inputs + 4 * (R + row));
                    dots[row][0] = pairs(dots[row][0], high_left, second);
                    dots[row][1] = pairs(dots[row][1], high_right, second);
                }
            }
            for (int half = 0; half < 2; ++half) {
                const __m256 scales = halves(record + 16 * half), minima = halves(record + kHalves + 16 * half);
                for (int row = 0; row < R; ++row) {
                    __m256& sum = sums[row][half];
                    const __m256 scale = _mm256_mul_ps(scales, _mm256_set1_ps(rows.scales[row]));
                    const __m256 dot = _mm256_cvtepi32_ps(widened(dots[row][half]));
                    sum = _mm256_fmadd_ps(dot, scale, sum);
                    sum = _mm256_fmadd_ps(minima, _mm256_set1_ps(rows.totals[row]), sum);
                }
            }
        }
        store<R>(sums, out);
    }

    template <int R>
    static void eight(const uint8_t* record, TileRows<R> rows, float* out) {
        __m256 sums[R][2];
        for (int row = 0; row < R; ++row) sums[row][0] = sums[row][1] = _mm256_setzero_ps();
        for (int g = 0; g < rows.num_groups; ++g, record += record_bytes(Bits::eight), rows.step()) {
            __m256i dots[R][2];
            for (int row = 0; row < R; ++row) dots[row][0] = dots[row][1] = _mm256_setzero_si256();
            const uint8_t* bytes = record + kHalves;
            const int8_t* inputs = rows.values;
#pragma GCC unroll 1
            for (int p = 0; p < 8; ++p, bytes += 64, inputs += 4 * R) {
                for (int half = 0; half < 2; ++half) {
                    const __m256i weights = _mm256_xor_si256(load(bytes + 32 * half), _mm256_set1_epi8(-128));
                    const __m256i magnitudes = _mm256_abs_epi8(weights);
                    for (int row = 0; row < R; ++row) {
                        const __m256i signed_inputs = _mm256_sign_epi8(four_inputs(inputs + 4 * row), weights);
                        // 2 x 128 x 127 is below 2^15, so no pair is cut short.
                        const __m256i two = _mm256_maddubs_epi16(magnitudes, signed_inputs);
                        dots[row][half] = _mm256_add_epi32(dots[row][half], widened(two));
                    }
                }
            }
            for (int half = 0; half < 2; ++half) {
                const __m256 scales = halves(record + 16 * half);
                for (int row = 0; row < R; ++row) {
                    __m256& sum = sums[row][half];
                    const __m256 scale = _mm256_mul_ps(scales, _mm256_set1_ps(rows.scales[row]));
                    const __m256 dot = _mm256_cvtepi32_ps(dots[row][half]);
                    sum = _mm256_fmadd_ps(dot, scale, sum);
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

#endif
