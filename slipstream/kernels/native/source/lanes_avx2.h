// Eight floats at a time on AVX2: the operations of lanes_plain.h, to the bit. Needs the target pragma before it.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace slipstream {

struct Avx2Lanes {
    __m256 of;

    static Avx2Lanes each(float value) { return {_mm256_set1_ps(value)}; }
    static Avx2Lanes load(const float* from) { return {_mm256_loadu_ps(from)}; }
    // Of sixteen bfloat16 numbers, those at even places, and those at odd ones.
    static Avx2Lanes load_even(const uint16_t* from) {
        const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
        return {_mm256_castsi256_ps(_mm256_slli_epi32(words, 16))};
    }
    static Avx2Lanes load_odd(const uint16_t* from) {
        const __m256 words = _mm256_loadu_ps(reinterpret_cast<const float*>(from));
        return {_mm256_and_ps(words, _mm256_castsi256_ps(_mm256_set1_epi32(-65536)))};
    }
    void store(float* to) const { _mm256_storeu_ps(to, of); }
    void store_bytes(int8_t* to) const {
        const __m256i whole = _mm256_cvtps_epi32(of);
        const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
        _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packs_epi16(words, words));
    }

    Avx2Lanes operator+(Avx2Lanes b) const { return {_mm256_add_ps(of, b.of)}; }
    Avx2Lanes operator-(Avx2Lanes b) const { return {_mm256_sub_ps(of, b.of)}; }
    Avx2Lanes operator*(Avx2Lanes b) const { return {_mm256_mul_ps(of, b.of)}; }
    Avx2Lanes operator/(Avx2Lanes b) const { return {_mm256_div_ps(of, b.of)}; }
    static Avx2Lanes fma(Avx2Lanes a, Avx2Lanes b, Avx2Lanes c) { return {_mm256_fmadd_ps(a.of, b.of, c.of)}; }
    static Avx2Lanes max(Avx2Lanes a, Avx2Lanes b) { return {_mm256_max_ps(a.of, b.of)}; }
    static Avx2Lanes abs(Avx2Lanes a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.of)}; }
    static Avx2Lanes round(Avx2Lanes a) {
        return {_mm256_round_ps(a.of, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
    }
    static Avx2Lanes scaled(Avx2Lanes a, Avx2Lanes n) {
        const __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(n.of), 23);
        return {_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a.of), exponent))};
    }
    static Avx2Lanes where_above(Avx2Lanes tested, Avx2Lanes limit, Avx2Lanes a) {
        return {_mm256_and_ps(_mm256_cmp_ps(tested.of, limit.of, _CMP_GT_OQ), a.of)};
    }
    static Avx2Lanes first(int n, Avx2Lanes a, Avx2Lanes other) {
        const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        const __m256 chosen = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n), index));
        return {_mm256_blendv_ps(other.of, a.of, chosen)};
    }
    float sum() const {
        const __m256 pairs = _mm256_hadd_ps(of, of);
        const __m256 fours = _mm256_hadd_ps(pairs, pairs);
        return _mm_cvtss_f32(_mm_add_ss(_mm256_castps256_ps128(fours), _mm256_extractf128_ps(fours, 1)));
    }
    float largest() const {
        __m128 found = _mm_max_ps(_mm256_castps256_ps128(of), _mm256_extractf128_ps(of, 1));
        found = _mm_max_ps(found, _mm_movehl_ps(found, found));
        return _mm_cvtss_f32(_mm_max_ss(found, _mm_shuffle_ps(found, found, 1)));
    }
    // Sums of eight, one per lane.
    static Avx2Lanes sums(const Avx2Lanes* a) {
        const __m256 p0 = _mm256_hadd_ps(a[0].of, a[1].of), p1 = _mm256_hadd_ps(a[2].of, a[3].of);
        const __m256 p2 = _mm256_hadd_ps(a[4].of, a[5].of), p3 = _mm256_hadd_ps(a[6].of, a[7].of);
        const __m256 q0 = _mm256_hadd_ps(p0, p1), q1 = _mm256_hadd_ps(p2, p3);
        return {_mm256_add_ps(_mm256_permute2f128_ps(q0, q1, 0x20), _mm256_permute2f128_ps(q0, q1, 0x31))};
    }
};

}  // namespace slipstream
