#include "tests/integration/running_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <regex>
#include <sstream>

namespace gatehouse::testing {
namespace {

std::filesystem::path FromEnvironment(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) {
    std::fprintf(stderr, "%s is not set: run this through ctest\n", name);
    std::exit(2);
  }
  return value;
}

// GET http://address/path, with the headers.
std::string HttpGet(const std::string& address, const std::string& path) {
  const size_t colon = address.rfind(':');
  sockaddr_in peer{};
  peer.sin_family = AF_INET;
  peer.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(colon + 1))));
  inet_pton(AF_INET, address.substr(0, colon).c_str(), &peer.sin_addr);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  std::string response;
  if (connect(fd, reinterpret_cast<const sockaddr*>(&peer), sizeof(peer)) == 0) {
    const std::string request = "GET " + path + " HTTP/1.0\r\nHost: " + address + "\r\n\r\n";
    if (write(fd, request.data(), request.size()) == static_cast<ssize_t>(request.size())) {
      char bytes[4096];
      for (ssize_t count; (count = read(fd, bytes, sizeof(bytes))) > 0;) {
        response.append(bytes, static_cast<size_t>(count));
      }
    }
  }
  close(fd);
  return response;
}

}  // namespace

std::filesystem::path Program(const std::string& name) { return FromEnvironment("GATEHOUSE_BIN_DIR") / name; }
std::filesystem::path SourceFile(const std::string& path) { return FromEnvironment("GATEHOUSE_SOURCE_DIR") / path; }

std::string ModelFlag() { return std::string(kModel) + "=" + SourceFile(std::string("models/") + kModel).string(); }

TemporaryFolder::TemporaryFolder() {
  std::string pattern = std::filesystem::temp_directory_path() / "gatehouse-test-XXXXXX";
  if (mkdtemp(pattern.data()) == nullptr) std::abort();
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

RunningServer::RunningServer(const std::vector<std::string>& flags) {
  std::vector<std::string> arguments = {Program("gatehouse-server"), "--listen", "127.0.0.1:0", "--metrics-listen",
                                        "127.0.0.1:0"};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  process_ = std::make_unique<Process>(arguments);
  const std::string line = process_->ReadLine();
  std::smatch match;
  if (!std::regex_search(line, match, std::regex("listening on (\\S+), metrics on (\\S+),"))) {
    const int exit_code = process_->Wait();
    std::fprintf(stderr, "the server did not start (%d): %s\n%s", exit_code, line.c_str(),
                 process_->error_output().c_str());
    std::exit(1);
  }
  address_ = match[1];
  metrics_ = match[2];
  if (std::regex_search(line, match, std::regex("page on http://\\S+:(\\d+)/"))) page_port_ = std::stoi(match[1]);
}

std::unique_ptr<Process> RunningServer::Start(std::vector<std::string> arguments) const {
  arguments.insert(arguments.begin(), {Program("gatehouse"), "--server", address_});
  return std::make_unique<Process>(arguments);
}

Finished RunningServer::Run(std::vector<std::string> arguments) const {
  arguments.insert(arguments.begin(), {Program("gatehouse"), "--server", address_});
  return RunToEnd(arguments);
}

nlohmann::json RunningServer::Json(std::vector<std::string> arguments) const {
  arguments.push_back("--json");
  const Finished finished = Run(arguments);
  EXPECT_EQ(finished.exit_code, 0) << ::testing::PrintToString(arguments) << "\n" << finished.err;
  return nlohmann::json::parse(finished.out, nullptr, false);
}

nlohmann::json RunningServer::Error(std::vector<std::string> arguments) const {
  arguments.push_back("--json");
  const Finished finished = Run(arguments);
  EXPECT_NE(finished.exit_code, 0) << ::testing::PrintToString(arguments) << "\n" << finished.out;
  EXPECT_EQ(std::count(finished.err.begin(), finished.err.end(), '\n'), 1) << finished.err;
  const auto json = nlohmann::json::parse(finished.out, nullptr, false);
  return json.is_object() && json.contains("error") ? json["error"] : nlohmann::json();
}

std::string RunningServer::Page() const { return HttpGet(metrics_, "/metrics"); }

Series RunningServer::Metrics() const {
  std::istringstream page(Page());
  Series series;
  for (std::string line; std::getline(page, line);) {
    if (!line.starts_with("gatehouse_")) continue;
    const size_t blank = line.rfind(' ');
    series[line.substr(0, blank)] = std::strtod(line.c_str() + blank, nullptr);
  }
  return series;
}

double RunningServer::Metric(const std::string& name, const std::vector<std::string>& labels) const {
  double sum = 0;
  for (const auto& [series, value] : Metrics()) {
    if (series != name && !series.starts_with(name + "{")) continue;
    const bool all = std::all_of(labels.begin(), labels.end(), [&, &text = series](const std::string& label) {
      return text.find(label) != std::string::npos;
    });
    if (all) sum += value;
  }
  return sum;
}

bool RunningServer::WaitForMetric(const std::string& name, double value) const {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (Metric(name) != value) {
    if (std::chrono::steady_clock::now() > end) return false;
  }
  return true;
}

}  // namespace gatehouse::testing
