#include "server/base/digest.h"

#include <openssl/evp.h>

#include <array>
#include <cstdlib>

#include "absl/strings/escaping.h"

namespace gatehouse {

struct Sha256::Context {
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> md{EVP_MD_CTX_new(), EVP_MD_CTX_free};
};

namespace {

// OpenSSL's digest calls fail only when memory does.
void Require(bool ok) {
  if (!ok) std::abort();
}

}  // namespace

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  Require(EVP_DigestInit_ex(context_->md.get(), EVP_sha256(), nullptr) == 1);
}

Sha256::~Sha256() = default;

void Sha256::Update(std::string_view bytes) {
  Require(EVP_DigestUpdate(context_->md.get(), bytes.data(), bytes.size()) == 1);
}

std::string Sha256::HexDigest() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned int size = 0;
  Require(EVP_DigestFinal_ex(context_->md.get(), digest.data(), &size) == 1);
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest.data()), size});
}

std::string Sha256Hex(std::string_view bytes) {
  Sha256 sha;
  sha.Update(bytes);
  return sha.HexDigest();
}

}  // namespace gatehouse
