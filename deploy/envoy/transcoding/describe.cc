// describe RULES SERVICES OUTPUT: adds the HTTP paths of RULES to the calls of a descriptor set, as Envoy's
// JSON transcoder reads them.  The protos themselves carry no annotations, so that nobody who uses them needs
// Google's.
#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/unknown_field_set.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>

namespace {

// Of google.api.http, an option of methods, and of its message HttpRule.
constexpr int kHttpOption = 72295728;
constexpr int kBodyField = 7;
const std::map<std::string, int> kVerbFields = {{"GET", 2}, {"POST", 4}};

using Rules = std::map<std::string, std::string>;  // "Service.Method" -> HttpRule, serialised

Rules ReadRules(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  Rules rules;
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string verb, http_path, method, body, more;
    if (!(words >> verb)) continue;
    words >> http_path >> method >> body >> more;
    if (!kVerbFields.contains(verb) || method.empty() || !(body.empty() || body == "body") || !more.empty()) {
      throw std::runtime_error("cannot read this line of " + path + ": " + line);
    }
    google::protobuf::UnknownFieldSet rule;
    rule.AddLengthDelimited(kVerbFields.at(verb), http_path);
    if (!body.empty()) rule.AddLengthDelimited(kBodyField, "*");
    std::string bytes;
    rule.SerializeToString(&bytes);
    if (!rules.emplace(method, bytes).second) throw std::runtime_error(method + " is there twice");
  }
  return rules;
}

// Every call of the package must have a rule, and every rule a call.
void AddRules(Rules rules, google::protobuf::FileDescriptorSet& files) {
  for (auto& file : *files.mutable_file()) {
    if (file.package() != "gatehouse.v1") continue;
    for (auto& service : *file.mutable_service()) {
      for (auto& method : *service.mutable_method()) {
        const auto rule = rules.extract(service.name() + "." + method.name());
        if (rule.empty()) throw std::runtime_error("no path for " + service.name() + "." + method.name());
        auto& options = *method.mutable_options();
        options.GetReflection()->MutableUnknownFields(&options)->AddLengthDelimited(kHttpOption, rule.mapped());
      }
    }
  }
  if (!rules.empty()) throw std::runtime_error("there is no call " + rules.begin()->first);
}

void Describe(const std::string& rules, const std::string& services, const std::string& output) {
  google::protobuf::FileDescriptorSet files;
  std::ifstream in(services, std::ios::binary);
  if (!files.ParseFromIstream(&in)) throw std::runtime_error("cannot read " + services);
  AddRules(ReadRules(rules), files);
  std::ofstream out(output, std::ios::binary);
  if (!files.SerializeToOstream(&out) || !out.flush()) throw std::runtime_error("cannot write " + output);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: %s RULES SERVICES OUTPUT\n", argv[0]);
    return 2;
  }
  try {
    Describe(argv[1], argv[2], argv[3]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", argv[0], error.what());
    return 1;
  }
  return 0;
}
