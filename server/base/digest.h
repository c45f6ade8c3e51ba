#ifndef GATEHOUSE_SERVER_BASE_DIGEST_H_
#define GATEHOUSE_SERVER_BASE_DIGEST_H_

#include <memory>
#include <string>
#include <string_view>

namespace gatehouse {

// SHA-256 of bytes that arrive in pieces.  Not thread-safe.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void Update(std::string_view bytes);
  // Lower-case hexadecimal, 64 digits.  Call once, last.
  std::string HexDigest();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

std::string Sha256Hex(std::string_view bytes);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_BASE_DIGEST_H_
