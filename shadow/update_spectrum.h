// The spectrum of what training does to the scores of one attention head: of the first-order increment of
// W_Q W_K^T (arXiv 2606.28116). Its effective rank moves long before a loss does, and only beside that of a
// healthy run does it mean anything.
#ifndef FORESHOCK_SHADOW_UPDATE_SPECTRUM_H_
#define FORESHOCK_SHADOW_UPDATE_SPECTRUM_H_

#include <optional>
#include <span>

namespace foreshock {

// Of a matrix with singular values s1 >= s2 >= ...
struct Spectrum {
  double frobenius;       // sqrt(sum s^2)
  double stable_rank;     // sum s^2 / s1^2
  double effective_rank;  // exp(-sum p ln p), p = s^2 / sum s^2
};

// One head's rows of a query and a key projection at two times: head dimension x model dimension, row-major,
// as torch's Linear keeps them.
struct HeadProjections {
  std::span<const double> query_before, query_after, key_before, key_after;
  size_t head_dim = 0, width = 0;
};

// Of D2 = dWq^T Wk + Wq^T dWk (width x width, Wq and Wk as before, d the change of each), by thin QR of [dWq,
// Wq] and [Wk, dWk], so that no matrix larger than width x 2 head_dim is made. Nothing when sizes do not fit,
// a value is not finite, or nothing changed. Any thread; about 16 width head_dim^2 + 300 head_dim^3
// operations.
std::optional<Spectrum> update_spectrum(const HeadProjections& head);

// The same of singular values, in any order: nothing when all are 0 or one is not finite.
std::optional<Spectrum> spectrum_of(std::span<const double> singular_values);

}  // namespace foreshock

#endif  // FORESHOCK_SHADOW_UPDATE_SPECTRUM_H_
