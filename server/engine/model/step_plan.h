#ifndef GATEHOUSE_SERVER_ENGINE_MODEL_STEP_PLAN_H_
#define GATEHOUSE_SERVER_ENGINE_MODEL_STEP_PLAN_H_

#include <cstdint>
#include <span>
#include <vector>

#include "server/engine/kernels/kernels.h"
#include "server/engine/model/kv_cache.h"
#include "server/engine/model/weights.h"
#include "server/engine/step.h"

namespace gatehouse {

// A row of a step with at most this many new positions joins the skinny group; a longer
// one is a wide group of its own.  So what computes a row depends on that row alone.
inline constexpr int kSkinnyRows = 16;

// What computes `rows` rows out of a group: few rows of a wide group are a skinny
// product too.
inline RowGroup GroupOfPart(RowGroup group, int64_t rows) { return rows > kSkinnyRows ? group : RowGroup::kSkinny; }

// A row of a step within its group.
struct PlannedRow {
  const Row* row = nullptr;
  RowResult* result = nullptr;  // the step's answer; filled in as it is found
  int first_row = 0;            // of the group's activations
  int rows = 0;
  int first_position = 0;
  std::span<const int32_t> pages;

  bool cancelled() const { return row->cancelled != nullptr && row->cancelled->load(std::memory_order_relaxed); }
};

// Rows that go through the layers together.
struct StepGroup {
  RowGroup kind = RowGroup::kSkinny;
  int total_rows = 0;
  bool intervenes = false;  // some row changes or captures activations
  std::vector<PlannedRow> rows;
};

// Checks every row, sizes its result, and groups those that can run.  A row that cannot
// has its status set and is in no group.  results.size() == rows.size(); both outlive the
// groups.
std::vector<StepGroup> PlanStep(std::span<const Row> rows, const ModelWeights& model, const KvCache& cache,
                                std::span<RowResult> results);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_MODEL_STEP_PLAN_H_
