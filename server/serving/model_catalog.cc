#include "server/serving/model_catalog.h"

#include <utility>

#include "server/base/error_reason.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/serving/names.h"

namespace gatehouse {

absl::Status ModelCatalog::Add(ServedModel model) {
  GH_RETURN_IF_ERROR(CheckName("a model's name", model.name));
  if (models_.contains(model.name)) {
    return absl::AlreadyExistsError(StrCat("there is already a model named ", model.name));
  }
  const std::string name = model.name;
  models_.emplace(name, std::make_unique<ServedModel>(std::move(model)));
  return absl::OkStatus();
}

absl::StatusOr<ServedModel*> ModelCatalog::Find(std::string_view name) const {
  const auto found = models_.find(name);
  if (found != models_.end()) return found->second.get();
  std::string names;
  for (const auto& [known, model] : models_) names += StrCat(names.empty() ? "" : ", ", known);
  const std::string named = CheckName("", name).ok() ? StrCat(" named ", name) : " of that name";
  return WithReason(
      absl::NotFoundError(StrCat("no model", named, "; this server has: ", names.empty() ? "none" : names)),
      reason::kModelNotFound);
}

std::vector<ServedModel*> ModelCatalog::models() const {
  std::vector<ServedModel*> models;
  for (const auto& [name, model] : models_) models.push_back(model.get());
  return models;
}

}  // namespace gatehouse
