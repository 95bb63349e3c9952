// The interface of all algorithms that the lab measures. An algorithm is one function of type Run and one row
// in the table of algorithm.cpp. An Arithmetic has the number format under test and its roundings.
#ifndef FORESHOCK_LAB_ALGORITHM_H_
#define FORESHOCK_LAB_ALGORITHM_H_

#include <optional>
#include <span>
#include <string_view>

#include "lab/arithmetic.h"
#include "lab/tensor.h"

namespace foreshock::lab {

// Algorithms of one family compute the same function: the named outputs (after "->") of the named inputs. The
// inputs are rounded to Arithmetic::storage() except for matrix_product. rows, n and d are chosen sizes: for
// attention the queries, keys and head dimension.
//   attention       query [rows][d], key, value [n][d], grad_out [rows][d]
//                   -> out [rows][d], log_sum_exp [rows][1]
//                   with Settings::backward also delta [rows][1] (see DeltaSource), grad_query, grad_key,
//                   grad_value
//                   the unfused algorithm also takes visible [rows][1]: row i sees the first visible[i] keys
//   convolution     image [d][n * n], filter [rows][d * 9] -> out [rows][(n - 2) * (n - 2)]
//   softmax         logits [rows][n] -> out [rows][n]
//   layer_norm      input [rows][n] -> out [rows][n]
//   matrix_product  left [rows][d], right [d][n], both rounded to Arithmetic::format()
//                   -> out [rows][n], which is not rounded
//   cross_entropy   hidden [rows][d], classes [n][d], label [rows][1]
//                   -> loss [rows][1], grad_hidden [rows][d]
enum class Family { kAttention, kConvolution, kSoftmax, kLayerNorm, kCrossEntropy, kMatrixProduct };

// How the backward pass of attention computes delta, the number that it subtracts from a row of dP: as the
// row's sum of dO * O, like shipped kernels, or as the row's sum of dP * P, which is equal apart from
// rounding (arXiv 2510.04212, section 3.2). O: output, P: probabilities, dO and dP: their gradients.
enum class DeltaSource { kOut, kProbabilities };

struct Tiling {
  int block_q = 64;      // rows of a tile
  int block_k = 64;      // keys of a tile; classes in cross_entropy, columns in other families
  int splits = 4;        // parts into which the algorithm split_k divides the keys
  bool reverse = false;  // process the tiles of keys from last to first
};

struct Settings {
  Tiling tiling;
  double scale = 1;       // factor of the scores, usually 1 / sqrt(d)
  bool backward = false;  // attention also computes the gradients
  DeltaSource delta = DeltaSource::kOut;
};

using Run = Tensors (*)(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);

struct Algorithm {
  std::string_view name;
  Family family;
  Run run;
  std::string_view summary;
};

std::span<const Algorithm> algorithms();
std::optional<Algorithm> find_algorithm(std::string_view name);

// Returns the unfused algorithm of the family. Its result in fp64 is the reference for all algorithms of the
// family. Its error in the format under test is the noise floor.
const Algorithm& plain_of(Family family);
std::string_view name_of(Family family);

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_ALGORITHM_H_
