// Functions of the 16-lane vector that every instruction set shares: exp, folds. Included after one
// of the simd_*.h headers.
#ifndef BATON_KERNELS_CPU_SIMD_MATH_H_
#define BATON_KERNELS_CPU_SIMD_MATH_H_

namespace baton::kernels::BATON_ISA {

// e^x; exactly 0 below -87.3 (the smallest normal result; -infinity included), exactly 1 at 0,
// constant above 88, NaN for NaN. At most 1.1 ulp for x in [-87.3, 88], says
// tests/kernels/math_test.cc.
//   x = n ln2 + r, |r| <= 0.347; e^r = 1 + (r + r^2 P(r)), P of degree 5 (Cephes' coefficients).
BATON_INLINE F32x16 Exp(F32x16 x) {
  const F32x16 lowest = Set1(-87.3f);
  const F32x16 clamped = Min(Set1(88.0f), Max(lowest, x));  // both give NaN for NaN
  const I32x16 power = ToInt(Mul(clamped, Set1(1.44269504088896341f)));
  const F32x16 n = ToFloat(power);
  F32x16 r = Fma(n, Set1(-0.693359375f), clamped);  // exact: 355/512
  r = Fma(n, Set1(2.12194440e-4f), r);
  F32x16 p = Fma(Set1(1.9875691500e-4f), r, Set1(1.3981999507e-3f));
  p = Fma(p, r, Set1(8.3334519073e-3f));
  p = Fma(p, r, Set1(4.1665795894e-2f));
  p = Fma(p, r, Set1(1.6666665459e-1f));
  p = Fma(p, r, Set1(5.0000001201e-1f));
  const F32x16 e = Add(Fma(p, Mul(r, r), r), Set1(1.0f));
  // A product, not an addition to the exponent, so that NaN stays NaN.
  const F32x16 two_to_n = FromBits(ShiftLeft<23>(AddI(power, SetI(127))));
  return ZeroWhereLess(x, lowest, Mul(e, two_to_n));
}

// Lane i of each quarter: all lanes of v[i], joined by a function that may take them in any order.
template <typename Join>
BATON_INLINE F32x16 FoldFour(const F32x16* v, const Join& join) {
  const F32x16 first = join(MixLow(v[0], v[1]), MixHigh(v[0], v[1]));
  const F32x16 second = join(MixLow(v[2], v[3]), MixHigh(v[2], v[3]));
  const F32x16 quarters = join(JoinLow(first, second), JoinHigh(first, second));
  const F32x16 halves = join(quarters, SwapLanes<8>(quarters));
  return join(halves, SwapLanes<4>(halves));
}

}  // namespace baton::kernels::BATON_ISA

#endif  // BATON_KERNELS_CPU_SIMD_MATH_H_
