// For tests/shadow/test_update_spectrum.py: the spectrum of each head that standard input holds. A head is
// head_dim and width (two uint64) and four matrices of fp64; a line is the three figures, or "none".
#include <cinttypes>
#include <cstdio>
#include <vector>

#include "shadow/spectrum.h"

int main() {
  uint64_t sizes[2];
  while (std::fread(sizes, sizeof sizes, 1, stdin) == 1) {
    std::vector<double> values[4];
    for (std::vector<double>& matrix : values) {
      matrix.resize(sizes[0] * sizes[1]);
      if (std::fread(matrix.data(), sizeof(double), matrix.size(), stdin) != matrix.size()) return 1;
    }
    const foreshock::HeadProjections head{.query_before = values[0],
                                          .query_after = values[1],
                                          .key_before = values[2],
                                          .key_after = values[3],
                                          .head_dim = sizes[0],
                                          .width = sizes[1]};
    const auto found = foreshock::update_spectrum(head);
    if (found)
      std::printf("%.17g %.17g %.17g\n", found->frobenius, found->stable_rank, found->effective_rank);
    else
      std::puts("none");
  }
}
