#ifndef GATEHOUSE_SERVER_SERVING_MODEL_CATALOG_H_
#define GATEHOUSE_SERVER_SERVING_MODEL_CATALOG_H_

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/engine/engine.h"
#include "server/serving/calibration_store.h"
#include "server/tokenizer/tokenizer.h"

namespace gatehouse {

// A model as it is served: its engine, its tokenizer, its calibrations.
struct ServedModel {
  std::string name;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<CalibrationStore> calibrations;
};

// The models of this server.  Filled once before serving; then read from any thread.
class ModelCatalog {
 public:
  // Loads NAME from a directory: engine, tokenizer.json, and the calibrations found in
  // <directory>/calibrations, <calibrations_dir>/NAME and <state_dir>/calibrations/NAME; the
  // last two may be empty.  AlreadyExists for a name given twice; InvalidArgument for a bad
  // name; else the loader's error, naming the model.
  absl::Status Load(const std::string& name, const std::string& directory, const EngineOptions& options,
                    const std::string& calibrations_dir, const std::string& state_dir);
  // For tests: a model made elsewhere.
  absl::Status Add(ServedModel model);

  // NotFound, listing the names there are.
  absl::StatusOr<ServedModel*> Find(std::string_view name) const;
  // In name order.
  std::vector<ServedModel*> models() const;

 private:
  std::map<std::string, std::unique_ptr<ServedModel>, std::less<>> models_;
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_SERVING_MODEL_CATALOG_H_
