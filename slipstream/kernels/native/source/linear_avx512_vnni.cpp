// AVX-512 with VNNI: one instruction multiplies and adds four inputs of all 16 outputs of a block.
#if defined(__x86_64__)
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512vnni,f16c,fma")
#include <immintrin.h>

#include "linear_tiles.h"

namespace slipstream {
namespace {

inline __m512i load(const uint8_t* from) { return _mm512_loadu_si512(from); }

inline __m512 halves(const uint8_t* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

inline __m512i four_inputs(const int8_t* from) {
    int32_t bits;
    __builtin_memcpy(&bits, from, sizeof bits);
    return _mm512_set1_epi32(bits);
}

struct VnniTile {
    static constexpr int kMaxRows = 8;

    template <int R>
    static void four(const uint8_t* record, TileRows<R> rows, float* out) {
        const __m512i mask = _mm512_set1_epi8(15);
        __m512 sums[R];
        for (int row = 0; row < R; ++row) sums[row] = _mm512_setzero_ps();
        for (int g = 0; g < rows.num_groups; ++g, record += record_bytes(Bits::four), rows.step()) {
            __m512i dots[R];
            for (int row = 0; row < R; ++row) dots[row] = _mm512_setzero_si512();
#pragma GCC unroll 4
            for (int p = 0; p < 4; ++p) {
                const __m512i bytes = load(record + 2 * kHalves + 64 * p);
                const __m512i low = _mm512_and_si512(bytes, mask);
                const __m512i high = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), mask);
                for (int row = 0; row < R; ++row) {
                    dots[row] = _mm512_dpbusd_epi32(dots[row], low, four_inputs(rows.inputs(2 * p, row)));
                    dots[row] = _mm512_dpbusd_epi32(dots[row], high, four_inputs(rows.inputs(2 * p + 1, row)));
                }
            }
            const __m512 scales = halves(record), minima = halves(record + kHalves);
            for (int row = 0; row < R; ++row) {
                const __m512 scale = _mm512_mul_ps(scales, _mm512_set1_ps(rows.scales[row]));
                sums[row] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[row]), scale, sums[row]);
                sums[row] = _mm512_fmadd_ps(minima, _mm512_set1_ps(rows.totals[row]), sums[row]);
            }
        }
        for (int row = 0; row < R; ++row) _mm512_store_ps(out + row * kBlock, sums[row]);
    }

    template <int R>
    static void eight(const uint8_t* record, TileRows<R> rows, float* out) {
        __m512 sums[R];
        for (int row = 0; row < R; ++row) sums[row] = _mm512_setzero_ps();
        for (int g = 0; g < rows.num_groups; ++g, record += record_bytes(Bits::eight), rows.step()) {
            __m512i dots[R];
            for (int row = 0; row < R; ++row) dots[row] = _mm512_set1_epi32(rows.offsets[row]);
#pragma GCC unroll 8
            for (int p = 0; p < 8; ++p) {
                const __m512i bytes = load(record + kHalves + 64 * p);
                for (int row = 0; row < R; ++row) {
                    dots[row] = _mm512_dpbusd_epi32(dots[row], bytes, four_inputs(rows.inputs(p, row)));
                }
            }
            const __m512 scales = halves(record);
            for (int row = 0; row < R; ++row) {
                const __m512 scale = _mm512_mul_ps(scales, _mm512_set1_ps(rows.scales[row]));
                sums[row] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[row]), scale, sums[row]);
            }
        }
        for (int row = 0; row < R; ++row) _mm512_store_ps(out + row * kBlock, sums[row]);
    }
};

}  // namespace

void linear_avx512_vnni(const Weight& weight, const Rows& rows, int first, int last, const Output& output) {
    linear_by_tiles<VnniTile>(weight, rows, first, last, output);
}

}  // namespace slipstream

#endif
