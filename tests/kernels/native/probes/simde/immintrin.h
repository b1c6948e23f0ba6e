// In place of the compiler's header: AVX-512 in plain C by SIMDe (simde-everywhere on GitHub), for any processor.
#pragma once

#define SIMDE_NO_NATIVE
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512/and.h>
#include <simde/x86/avx512/cvt.h>
#include <simde/x86/avx512/dpbusd.h>
#include <simde/x86/avx512/loadu.h>
#include <simde/x86/avx512/mul.h>
#include <simde/x86/avx512/set1.h>
#include <simde/x86/avx512/setzero.h>
#include <simde/x86/avx512/srli.h>
#include <simde/x86/avx512/store.h>

#include <cmath>
#include <cstring>

#include "half.h"

// What SIMDe rounds twice, where the processor rounds once, and what its older versions lack.
template <typename Function>
inline simde__m512 lanes(Function function) {
    float values[16];
    for (int i = 0; i < 16; ++i) values[i] = function(i);
    simde__m512 result;
    std::memcpy(&result, values, sizeof values);
    return result;
}

template <typename Element, typename Vector>
inline Element lane(const Vector& vector, int index) {
    Element element;
    std::memcpy(&element, reinterpret_cast<const char*>(&vector) + index * sizeof element, sizeof element);
    return element;
}

inline simde__m512 fused(simde__m512 a, simde__m512 b, simde__m512 c) {
    return lanes([&](int i) { return std::fma(lane<float>(a, i), lane<float>(b, i), lane<float>(c, i)); });
}
inline simde__m512 from_halves(simde__m256i a) {
    return lanes([&](int i) { return slipstream::half_to_float(lane<uint16_t>(a, i)); });
}
inline simde__m512 from_integers(simde__m512i a) {
    return lanes([&](int i) { return static_cast<float>(lane<int32_t>(a, i)); });
}
#undef _mm512_fmadd_ps
#undef _mm512_cvtph_ps
#undef _mm512_cvtepi32_ps
#define _mm512_fmadd_ps(a, b, c) fused(a, b, c)
#define _mm512_cvtph_ps(a) from_halves(a)
#define _mm512_cvtepi32_ps(a) from_integers(a)
