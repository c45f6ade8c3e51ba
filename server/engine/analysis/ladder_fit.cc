#include "server/engine/analysis/ladder_fit.h"

#include <ATen/TensorIndexing.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros.h>

#include <functional>
#include <optional>
#include <tuple>

#include "server/base/status_macros.h"
#include "server/engine/training/plain_forward.h"

namespace gatehouse {
namespace {

// Some of what an MLP does: the tokens of one batch that are no sinks.
struct Piece {
  at::Tensor x;        // [n, d_model]
  at::Tensor neurons;  // [n, d_mlp]
  at::Tensor y;        // [n, d_model]
};

class LadderFit {
 public:
  LadderFit(const ModelWeights& model, int layer, const SplitStream& split, int sinks, double norm_limit, Work& work)
      : model_(model), layer_(layer), split_(split), sinks_(sinks), norm_limit_(norm_limit), work_(work) {}

  absl::Status ForPieces(const std::function<void(const Piece&)>& body) const {
    return split_.ForBatches([&](int64_t first, int64_t count) -> absl::Status {
      GH_RETURN_IF_ERROR(work_.Step(static_cast<double>(count * split_.window())));
      const at::Tensor x = split_.x().narrow(0, first, count);
      const at::Tensor neurons = PlainNeurons(model_, layer_, x);
      const at::Tensor y = PlainDown(model_, layer_, neurons);
      at::Tensor kept = at::linalg_vector_norm(y, 2, at::IntArrayRef{-1}) <= norm_limit_;
      kept.narrow(1, 0, sinks_).fill_(false);
      body({x.index({kept}), neurons.index({kept}), y.index({kept})});
      return absl::OkStatus();
    });
  }

  // Residual energy of each neuron: [d_mlp], float64.
  absl::StatusOr<at::Tensor> Energies(double ridge) const {
    const int64_t d_mlp = model_.config.d_mlp;
    RidgeSums sums(model_.config.d_model, d_mlp, split_.x().device());
    GH_RETURN_IF_ERROR(ForPieces([&](const Piece& piece) { sums.Add(piece.x, piece.neurons); }));
    GH_ASSIGN_OR_RETURN(const Surrogate fit, sums.Solve(ridge));
    at::Tensor energy = at::zeros({d_mlp}, split_.x().options().dtype(at::kDouble));
    GH_RETURN_IF_ERROR(ForPieces(
        [&](const Piece& piece) { energy += (piece.neurons - fit.Predict(piece.x)).to(at::kDouble).square().sum(0); }));
    return energy * model_.layers[layer_].mlp_out.weight.to(at::kDouble).square().sum(0);
  }

 private:
  const ModelWeights& model_;
  const int layer_;
  const SplitStream& split_;
  const int sinks_;
  const double norm_limit_;
  Work& work_;
};

}  // namespace

absl::StatusOr<Ladder> FitLadder(const ModelWeights& model, int layer, const SplitStream& split, int neurons, int sinks,
                                 double norm_limit, double ridge, Work& work) {
  const LadderFit fit(model, layer, split, sinks, norm_limit, work);
  GH_ASSIGN_OR_RETURN(const at::Tensor energies, fit.Energies(ridge));
  Ladder ladder;
  ladder.neurons = std::get<0>(std::get<1>(energies.topk(neurons)).sort());
  const int64_t d = model.config.d_model;
  RidgeSums sums(d, d, split.x().device());
  GH_RETURN_IF_ERROR(fit.ForPieces([&](const Piece& piece) {
    sums.Add(piece.x, piece.y - PlainNeuronsWrite(model, layer, piece.neurons, ladder.neurons));
  }));
  GH_ASSIGN_OR_RETURN(ladder.rest, sums.Solve(ridge));
  return ladder;
}

}  // namespace gatehouse
