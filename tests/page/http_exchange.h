#ifndef GATEHOUSE_TESTS_PAGE_HTTP_EXCHANGE_H_
#define GATEHOUSE_TESTS_PAGE_HTTP_EXCHANGE_H_

#include <string>

namespace gatehouse::testing {

// One connection to a port of the loopback, byte by byte.
class HttpExchange {
 public:
  explicit HttpExchange(int port);
  ~HttpExchange() { Close(); }
  HttpExchange(const HttpExchange&) = delete;
  HttpExchange& operator=(const HttpExchange&) = delete;

  void Send(const std::string& bytes) const;
  // What is left until the server closes the connection.
  std::string ReadAll();
  // What arrives until `text` is among it; all, where the connection ends before.
  std::string ReadUntil(const std::string& text);
  void Close();

 private:
  int socket_ = -1;
  std::string read_;
};

// "POST /trace" with those headers, each ended by "\r\n", and a body.
std::string TracePost(const std::string& body,
                      const std::string& headers = "Host: 127.0.0.1\r\nContent-Type: application/json\r\n");

// The number in the first line of an answer, and what follows its headers.
int StatusOf(const std::string& answer);
std::string BodyOf(const std::string& answer);

}  // namespace gatehouse::testing

#endif  // GATEHOUSE_TESTS_PAGE_HTTP_EXCHANGE_H_
