#include "server/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/tokenizer/json_section.h"
#include "server/tokenizer/nfc.h"
#include "server/tokenizer/unicode.h"

namespace gatehouse {
namespace {

// Bounds the time that a text full of beginnings of an added token takes.
constexpr size_t kLongestAddedToken = 1024;

absl::Status NotSupported(std::string_view path, std::string_view value) {
  return absl::InvalidArgumentError(StrCat(path, " ", value, " is not supported"));
}

// The steps of a pipeline field: none for null; "Sequence" is flattened, its steps
// lying under `list_key`.
absl::Status CollectSteps(const Json* field, const std::string& path, std::string_view list_key,
                          std::vector<JsonSection>& steps) {
  if (field == nullptr) return absl::OkStatus();
  GH_ASSIGN_OR_RETURN(const JsonSection section, JsonSection::Of(*field, path));
  GH_ASSIGN_OR_RETURN(const std::string type, section.String("type"));
  if (type != "Sequence") {
    steps.push_back(section);
    return absl::OkStatus();
  }
  GH_RETURN_IF_ERROR(section.CheckKnown({"type", list_key}));
  GH_ASSIGN_OR_RETURN(const Json* list, section.Array(list_key));
  for (size_t i = 0; i < list->size(); ++i) {
    GH_RETURN_IF_ERROR(CollectSteps(&(*list)[i], StrCat(section.PathOf(list_key), "[", i, "]"), list_key, steps));
  }
  return absl::OkStatus();
}

// ---- model

absl::Status ReadVocab(const JsonSection& model, BpeOptions& options) {
  GH_ASSIGN_OR_RETURN(const JsonSection vocab, model.Object("vocab"));
  if (vocab.json().empty()) return model.Error("vocab", "is empty");
  absl::flat_hash_map<int32_t, const std::string*> spelling_of;
  for (const auto& [spelling, value] : vocab.json().get_ref<const Json::object_t&>()) {
    GH_ASSIGN_OR_RETURN(const int32_t id, ReadTokenId(value, StrCat("model.vocab[", Quoted(spelling), "]")));
    const auto [other, is_new] = spelling_of.emplace(id, &spelling);
    if (!is_new) {
      return model.Error("vocab",
                         StrCat("gives the id ", id, " to both ", Quoted(*other->second), " and ", Quoted(spelling)));
    }
    options.vocab.emplace_back(spelling, id);
  }
  return absl::OkStatus();
}

// Merges are pairs ["a", "b"], or, in older files, strings "a b".
absl::Status ReadMerges(const JsonSection& model, BpeOptions& options) {
  GH_ASSIGN_OR_RETURN(const Json* merges, model.Array("merges"));
  const bool as_strings = !merges->empty() && merges->front().is_string();
  for (size_t i = 0; i < merges->size(); ++i) {
    const Json& merge = (*merges)[i];
    const std::string path = StrCat("merges[", i, "]");
    if (as_strings && merge.is_string()) {
      const std::string_view text = merge.get_ref<const std::string&>();
      if (text.starts_with("#version")) continue;
      const size_t blank = text.find(' ');
      if (blank == std::string_view::npos || text.find(' ', blank + 1) != std::string_view::npos) {
        return model.Error(path, "is not two tokens with a blank between them");
      }
      options.merges.emplace_back(text.substr(0, blank), text.substr(blank + 1));
    } else if (!as_strings && merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      options.merges.emplace_back(merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>());
    } else {
      return model.Error(path, as_strings ? "is not a string" : "is not a pair of strings");
    }
  }
  return absl::OkStatus();
}

absl::Status ReadModel(const JsonSection& file, BpeOptions& options) {
  GH_ASSIGN_OR_RETURN(const JsonSection model, file.Object("model"));
  if (model.Find("type") != nullptr) {
    GH_ASSIGN_OR_RETURN(const std::string type, model.String("type"));
    if (type != "BPE") return NotSupported("model.type", Quoted(type));
  }
  GH_RETURN_IF_ERROR(
      model.CheckKnown({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                        "byte_fallback", "ignore_merges", "vocab", "merges"}));
  if (const Json* dropout = model.Find("dropout"); dropout != nullptr && *dropout != 0) {
    return model.Error("dropout", "other than null or 0 is not supported: it makes tokens a matter of chance");
  }
  for (const std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const Json* affix = model.Find(key);
    if (affix != nullptr && *affix != "") return model.Error(key, "other than null or \"\" is not supported");
  }
  GH_ASSIGN_OR_RETURN(const bool byte_fallback, model.Bool("byte_fallback", false));
  if (byte_fallback) return NotSupported("model.byte_fallback", "true");
  if (model.Find("unk_token") != nullptr) {
    GH_ASSIGN_OR_RETURN(options.unk_token, model.String("unk_token"));
  }
  GH_ASSIGN_OR_RETURN(options.fuse_unk, model.Bool("fuse_unk", false));
  GH_ASSIGN_OR_RETURN(options.ignore_merges, model.Bool("ignore_merges", false));
  GH_RETURN_IF_ERROR(ReadVocab(model, options));
  return ReadMerges(model, options);
}

// ---- added tokens

absl::StatusOr<AddedToken> ReadAddedToken(const Json& json, const std::string& path) {
  GH_ASSIGN_OR_RETURN(const JsonSection section, JsonSection::Of(json, path));
  GH_RETURN_IF_ERROR(section.CheckKnown({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}));
  AddedToken token;
  GH_ASSIGN_OR_RETURN(token.id, section.TokenId("id"));
  GH_ASSIGN_OR_RETURN(token.content, section.String("content"));
  GH_ASSIGN_OR_RETURN(token.single_word, section.Bool("single_word"));
  GH_ASSIGN_OR_RETURN(token.lstrip, section.Bool("lstrip"));
  GH_ASSIGN_OR_RETURN(token.rstrip, section.Bool("rstrip"));
  GH_ASSIGN_OR_RETURN(token.normalized, section.Bool("normalized"));
  GH_ASSIGN_OR_RETURN(token.special, section.Bool("special"));
  if (token.content.empty()) return section.Error("content", "is empty");
  if (token.content.size() > kLongestAddedToken) {
    return section.Error("content", StrCat("is longer than ", kLongestAddedToken, " bytes"));
  }
  return token;
}

// The reference does not believe the ids in the file: a token has the id that the
// vocabulary gives its content, or else the next free one.  A file that says otherwise
// would be read as other tokens than it means, so it is refused.
absl::Status ReadAddedTokens(const JsonSection& file, TokenizerSpec& spec) {
  if (file.Find("added_tokens") == nullptr) return absl::OkStatus();
  GH_ASSIGN_OR_RETURN(const Json* list, file.Array("added_tokens"));
  absl::flat_hash_map<std::string, int32_t> vocab(spec.model.vocab.begin(), spec.model.vocab.end());
  absl::flat_hash_set<std::string> seen;
  auto next_id = static_cast<int32_t>(vocab.size());
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string path = StrCat("added_tokens[", i, "]");
    GH_ASSIGN_OR_RETURN(AddedToken token, ReadAddedToken((*list)[i], path));
    if (!seen.insert(token.content).second) {
      return absl::InvalidArgumentError(StrCat(path, ".content ", Quoted(token.content), " occurs twice"));
    }
    const auto known = vocab.find(token.content);
    const int32_t id = known != vocab.end() ? known->second : next_id;
    if (token.id != id) {
      return absl::InvalidArgumentError(
          StrCat(path, ".id ", token.id, " is not ", id, ", the id that ", Quoted(token.content), " has"));
    }
    next_id = std::max(next_id, id + 1);
    spec.added_tokens.push_back(std::move(token));
  }
  return absl::OkStatus();
}

// ---- normaliser, pre-tokeniser, decoder

absl::Status ReadNormalizer(const JsonSection& file, TokenizerSpec& spec) {
  std::vector<JsonSection> steps;
  GH_RETURN_IF_ERROR(CollectSteps(file.Find("normalizer"), "normalizer", "normalizers", steps));
  for (const JsonSection& step : steps) {
    GH_ASSIGN_OR_RETURN(const std::string type, step.String("type"));
    if (type != "NFC") return NotSupported(step.PathOf("type"), Quoted(type));
    GH_RETURN_IF_ERROR(step.CheckKnown({"type"}));
    spec.nfc = true;
  }
  return absl::OkStatus();
}

// Of two tokens that the normaliser makes equal the reference finds one by chance.
absl::Status CheckNormalizedTokens(const TokenizerSpec& spec) {
  absl::flat_hash_set<std::string> seen;
  for (size_t i = 0; i < spec.added_tokens.size(); ++i) {
    const AddedToken& token = spec.added_tokens[i];
    if (!spec.nfc || !token.normalized || seen.insert(ToNfc(token.content)).second) continue;
    return absl::InvalidArgumentError(
        StrCat("added_tokens[", i, "].content ", Quoted(token.content), " equals another one after NFC"));
  }
  return absl::OkStatus();
}

absl::Status ReadDigits(const JsonSection& step, PreTokenizerOptions& options) {
  using Digits = PreTokenizerOptions::Digits;
  GH_RETURN_IF_ERROR(step.CheckKnown({"type", "individual_digits"}));
  GH_ASSIGN_OR_RETURN(const bool each_alone, step.Bool("individual_digits"));
  // Two such steps do what the finer one does.
  if (each_alone) {
    options.digits = Digits::kEachAlone;
  } else if (options.digits == Digits::kKeep) {
    options.digits = Digits::kRuns;
  }
  return absl::OkStatus();
}

absl::Status ReadPreTokenizer(const JsonSection& file, PreTokenizerOptions& options) {
  std::vector<JsonSection> steps;
  GH_RETURN_IF_ERROR(CollectSteps(file.Find("pre_tokenizer"), "pre_tokenizer", "pretokenizers", steps));
  bool byte_level = false;
  for (const JsonSection& step : steps) {
    GH_ASSIGN_OR_RETURN(const std::string type, step.String("type"));
    if (type != "Digits" && type != "ByteLevel") return NotSupported(step.PathOf("type"), Quoted(type));
    if (byte_level) return NotSupported(step.PathOf("type"), StrCat(Quoted(type), " after \"ByteLevel\""));
    if (type == "Digits") {
      GH_RETURN_IF_ERROR(ReadDigits(step, options));
      continue;
    }
    byte_level = true;
    GH_RETURN_IF_ERROR(step.CheckKnown({"type", "add_prefix_space", "trim_offsets", "use_regex"}));
    GH_ASSIGN_OR_RETURN(options.add_prefix_space, step.Bool("add_prefix_space"));
    GH_ASSIGN_OR_RETURN(options.use_regex, step.Bool("use_regex", true));
  }
  if (!byte_level) return NotSupported("pre_tokenizer", "without \"ByteLevel\"");
  return absl::OkStatus();
}

absl::Status CheckDecoder(const JsonSection& file) {
  GH_ASSIGN_OR_RETURN(const JsonSection decoder, file.Object("decoder"));
  GH_ASSIGN_OR_RETURN(const std::string type, decoder.String("type"));
  if (type != "ByteLevel") return NotSupported("decoder.type", Quoted(type));
  return decoder.CheckKnown({"type", "add_prefix_space", "trim_offsets", "use_regex"});
}

// ---- post-processor

// Appends the ids of the special token of a template piece.
absl::Status AppendTemplateIds(const JsonSection& processor, const std::string& name,
                               const absl::flat_hash_set<int32_t>& known_ids, std::vector<int32_t>& ids) {
  GH_ASSIGN_OR_RETURN(const JsonSection tokens, processor.Object("special_tokens"));
  GH_ASSIGN_OR_RETURN(const JsonSection token, tokens.Object(name));
  GH_ASSIGN_OR_RETURN(const Json* list, token.Array("ids"));
  for (const Json& value : *list) {
    GH_ASSIGN_OR_RETURN(const int32_t id, ReadTokenId(value, token.PathOf("ids")));
    if (!known_ids.contains(id)) return token.Error("ids", StrCat("has ", id, ", which is no token's id"));
    ids.push_back(id);
  }
  return absl::OkStatus();
}

// A template for one text: special tokens around the sequence A.
absl::Status ReadTemplate(const JsonSection& processor, const absl::flat_hash_set<int32_t>& known_ids,
                          TokenizerSpec& spec) {
  GH_RETURN_IF_ERROR(processor.CheckKnown({"type", "single", "pair", "special_tokens"}));
  GH_ASSIGN_OR_RETURN(const Json* pieces, processor.Array("single"));
  std::vector<int32_t> before;
  std::vector<int32_t> after;
  bool has_text = false;
  for (size_t i = 0; i < pieces->size(); ++i) {
    const std::string path = StrCat(processor.PathOf("single"), "[", i, "]");
    GH_ASSIGN_OR_RETURN(const JsonSection piece, JsonSection::Of((*pieces)[i], path));
    GH_RETURN_IF_ERROR(piece.CheckKnown({"SpecialToken", "Sequence"}));
    if (piece.Find("SpecialToken") != nullptr) {
      GH_ASSIGN_OR_RETURN(const JsonSection special, piece.Object("SpecialToken"));
      GH_ASSIGN_OR_RETURN(const std::string name, special.String("id"));
      GH_RETURN_IF_ERROR(AppendTemplateIds(processor, name, known_ids, has_text ? after : before));
      continue;
    }
    GH_ASSIGN_OR_RETURN(const JsonSection sequence, piece.Object("Sequence"));
    GH_ASSIGN_OR_RETURN(const std::string name, sequence.String("id"));
    if (name != "A" || has_text) return NotSupported(path, "other than the sequence \"A\", once,");
    has_text = true;
  }
  if (!has_text) return NotSupported(processor.PathOf("single"), "without the sequence \"A\"");
  spec.prefix.insert(spec.prefix.begin(), before.begin(), before.end());
  spec.suffix.insert(spec.suffix.end(), after.begin(), after.end());
  return absl::OkStatus();
}

absl::Status ReadPostProcessor(const JsonSection& file, TokenizerSpec& spec) {
  std::vector<JsonSection> steps;
  GH_RETURN_IF_ERROR(CollectSteps(file.Find("post_processor"), "post_processor", "processors", steps));
  absl::flat_hash_set<int32_t> known_ids;
  for (const auto& [spelling, id] : spec.model.vocab) known_ids.insert(id);
  for (const AddedToken& token : spec.added_tokens) known_ids.insert(token.id);
  for (const JsonSection& step : steps) {
    GH_ASSIGN_OR_RETURN(const std::string type, step.String("type"));
    if (type == "ByteLevel") continue;  // it changes offsets only
    if (type != "TemplateProcessing") return NotSupported(step.PathOf("type"), Quoted(type));
    GH_RETURN_IF_ERROR(ReadTemplate(step, known_ids, spec));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TokenizerSpec> ParseTokenizerJson(std::string_view text) {
  GH_ASSIGN_OR_RETURN(const Json json, ParseJson(text));
  GH_ASSIGN_OR_RETURN(const JsonSection file, JsonSection::Of(json, ""));
  GH_RETURN_IF_ERROR(file.CheckKnown({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                                      "post_processor", "decoder", "model"}));
  if (const Json* version = file.Find("version"); version != nullptr && *version != "1.0") {
    return file.Error("version", "is not \"1.0\"");
  }
  for (const std::string_view key : {"truncation", "padding"}) {
    if (file.Find(key) != nullptr) return file.Error(key, "other than null is not supported: texts are kept whole");
  }
  TokenizerSpec spec;
  GH_RETURN_IF_ERROR(ReadModel(file, spec.model));
  GH_RETURN_IF_ERROR(ReadAddedTokens(file, spec));
  GH_RETURN_IF_ERROR(ReadNormalizer(file, spec));
  GH_RETURN_IF_ERROR(CheckNormalizedTokens(spec));
  GH_RETURN_IF_ERROR(ReadPreTokenizer(file, spec.pre_tokenizer));
  GH_RETURN_IF_ERROR(CheckDecoder(file));
  GH_RETURN_IF_ERROR(ReadPostProcessor(file, spec));
  return spec;
}

}  // namespace gatehouse
