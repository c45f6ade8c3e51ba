#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/serving/model_catalog.h"
#include "server/serving/names.h"

namespace gatehouse {
namespace {

absl::StatusOr<ServedModel> LoadModel(const std::string& name, const std::string& directory,
                                      const EngineOptions& options, const std::string& calibrations_dir,
                                      const std::string& state_dir) {
  const std::filesystem::path folder(directory);
  std::vector<std::string> calibrations = {folder / "calibrations"};
  if (!calibrations_dir.empty()) calibrations.push_back(std::filesystem::path(calibrations_dir) / name);
  ServedModel model;
  model.name = name;
  GH_ASSIGN_OR_RETURN(model.tokenizer, Tokenizer::Load(folder / "tokenizer.json"));
  GH_ASSIGN_OR_RETURN(model.engine, LoadEngine(directory, options));
  const std::string state_folder =
      state_dir.empty() ? "" : (std::filesystem::path(state_dir) / "calibrations" / name).string();
  GH_ASSIGN_OR_RETURN(model.calibrations,
                      CalibrationStore::Create(*model.engine, name, std::move(calibrations), state_folder));
  return model;
}

}  // namespace

// Apart from the rest of the catalog because it alone needs the real engine.
absl::Status ModelCatalog::Load(const std::string& name, const std::string& directory, const EngineOptions& options,
                                const std::string& calibrations_dir, const std::string& state_dir) {
  GH_RETURN_IF_ERROR(CheckName("a model's name", name));
  if (models_.contains(name)) return absl::AlreadyExistsError(StrCat("there is already a model named ", name));
  absl::StatusOr<ServedModel> model = LoadModel(name, directory, options, calibrations_dir, state_dir);
  if (!model.ok()) return Annotate(model.status(), StrCat("model ", name));
  return Add(*std::move(model));
}

}  // namespace gatehouse
