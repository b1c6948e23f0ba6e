// exp of lanes, to about one unit in the last place for arguments from -87 to 88; 0 below, e^88 above.
#pragma once

namespace slipstream {

template <typename Lanes>
inline Lanes exponential(Lanes x) {
    const Lanes lowest = Lanes::each(-87.0f);
    // Cody and Waite: x = n ln 2 + r with ln 2 in two parts; the polynomial is the Taylor series to r^7 / 5040.
    const Lanes held = Lanes::each(0.0f) - Lanes::max(Lanes::each(0.0f) - Lanes::max(x, lowest), Lanes::each(-88.0f));
    const Lanes n = Lanes::round(held * Lanes::each(1.44269504f));
    Lanes r = Lanes::fma(n, Lanes::each(-0.693359375f), held);
    r = Lanes::fma(n, Lanes::each(2.12194440e-4f), r);
    Lanes p = Lanes::each(1.0f / 5040.0f);
    p = Lanes::fma(p, r, Lanes::each(1.0f / 720.0f));
    p = Lanes::fma(p, r, Lanes::each(1.0f / 120.0f));
    p = Lanes::fma(p, r, Lanes::each(1.0f / 24.0f));
    p = Lanes::fma(p, r, Lanes::each(1.0f / 6.0f));
    p = Lanes::fma(p, r, Lanes::each(0.5f));
    p = Lanes::fma(p, r, Lanes::each(1.0f));
    p = Lanes::fma(p, r, Lanes::each(1.0f));
    return Lanes::where_above(x, lowest, Lanes::scaled(p, n));
}

}  // namespace slipstream
