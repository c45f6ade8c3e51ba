#ifndef GATEHOUSE_TESTS_SUPPORT_ARGUMENTS_H_
#define GATEHOUSE_TESTS_SUPPORT_ARGUMENTS_H_

#include <cstdlib>
#include <iostream>
#include <map>
#include <string>

namespace gatehouse::testing {

// The command line of a small program: `--name value` pairs.  Ends the program with a
// message for anything else.
class Arguments {
 public:
  // `defaults` names every option there is.
  Arguments(int argc, char** argv, std::map<std::string, std::string> defaults) : values_(std::move(defaults)) {
    for (int i = 1; i < argc; i += 2) {
      const std::string name = std::string(argv[i]).substr(0, 2) == "--" ? argv[i] + 2 : "";
      if (i + 1 >= argc || !values_.contains(name)) {
        std::cerr << "usage: " << argv[0];
        for (const auto& [option, value] : values_) std::cerr << " --" << option << " '" << value << "'";
        std::cerr << "\n";
        std::exit(2);
      }
      values_[name] = argv[i + 1];
    }
  }

  const std::string& operator[](const std::string& name) const { return values_.at(name); }
  int Int(const std::string& name) const { return std::stoi(values_.at(name)); }

 private:
  std::map<std::string, std::string> values_;
};

}  // namespace gatehouse::testing

#endif  // GATEHOUSE_TESTS_SUPPORT_ARGUMENTS_H_
