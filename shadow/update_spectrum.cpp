#include "shadow/update_spectrum.h"

#define EIGEN_MPL2_ONLY
#include <Eigen/QR>
#include <Eigen/SVD>
#include <algorithm>
#include <cmath>

namespace foreshock {
namespace {

using Matrix = Eigen::MatrixXd;
using Rows = Eigen::Map<const Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;

// R of the thin QR. Householder's is stable column by column, so the columns of a small change keep their own
// relative precision beside those of the weights.
Matrix triangle_of(Matrix tall) {
  if (tall.rows() <= tall.cols()) return tall;  // nothing to gain
  const Eigen::HouseholderQR<Eigen::Ref<Matrix>> qr(tall);
  return qr.matrixQR().topRows(tall.cols()).triangularView<Eigen::Upper>();
}

Matrix side_by_side(const Matrix& left, const Matrix& right) {
  Matrix both(left.rows(), left.cols() + right.cols());
  both << left, right;
  return both;
}

}  // namespace

std::optional<Spectrum> spectrum_of(std::span<const double> singular_values) {
  double largest = 0;
  for (double s : singular_values) {
    if (!std::isfinite(s)) return std::nullopt;
    largest = std::max(largest, s);
  }
  if (largest == 0) return std::nullopt;
  double squares = 0, entropy = 0;  // of values relative to the largest, so that no square overflows
  for (double s : singular_values) squares += s / largest * (s / largest);
  for (double s : singular_values) {
    const double p = s / largest * (s / largest) / squares;
    if (p > 0) entropy -= p * std::log(p);
  }
  return Spectrum{largest * std::sqrt(squares), squares, std::exp(entropy)};
}

std::optional<Spectrum> update_spectrum(const HeadProjections& head) {
  const size_t count = head.head_dim * head.width;
  if (count == 0) return std::nullopt;
  for (std::span<const double> values :
       {head.query_before, head.query_after, head.key_before, head.key_after}) {
    if (values.size() != count) return std::nullopt;
    if (!std::all_of(values.begin(), values.end(), [](double x) { return std::isfinite(x); }))
      return std::nullopt;
  }
  const auto columns = [&](std::span<const double> values) -> Matrix {
    return Rows(values.data(), static_cast<Eigen::Index>(head.head_dim),
                static_cast<Eigen::Index>(head.width))
        .transpose();
  };
  const Matrix query = columns(head.query_before), key = columns(head.key_before);
  const Matrix left = triangle_of(side_by_side(columns(head.query_after) - query, query));
  const Matrix right = triangle_of(side_by_side(key, columns(head.key_after) - key));
  const Matrix core = left * right.transpose();
  const Eigen::VectorXd values = Eigen::BDCSVD<Matrix>(core).singularValues();
  return spectrum_of({values.data(), static_cast<size_t>(values.size())});
}

}  // namespace foreshock
