// The client's calls about corpora, operations and their reports.
#include <gmock/gmock.h>

#include <atomic>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include "client/client.h"
#include "client/errors.h"
#include "tests/client/client_of.h"
#include "tests/client/fake_server.h"
#include "tests/support/status_matchers.h"

namespace gatehouse::client {
namespace {

using ::gatehouse::testing::ClientOf;
using ::gatehouse::testing::FakeHandlers;
using ::gatehouse::testing::FakeServer;
using ::gatehouse::testing::FakeStatus;
using ::gatehouse::testing::StatusIs;
using ::testing::_;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

v1::Operation OperationIn(v1::OperationState state) {
  v1::Operation operation;
  operation.set_name("operations/r/1");
  operation.set_state(state);
  return operation;
}

TEST(ClientOperations, NeverStartsAnOperationTwice) {
  std::atomic<int> calls = 0;
  FakeHandlers handlers;
  handlers.start_operation = [&](const auto&, auto&) {
    ++calls;
    return FakeStatus{testing::kUnavailable, "lost"};
  };
  FakeServer server(handlers);
  EXPECT_THAT(ClientOf(server)->StartOperation({}), StatusIs(absl::StatusCode::kUnavailable, "lost"));
  EXPECT_EQ(calls, 1);
}

TEST(ClientOperations, UploadsATextInChunksWithItsNameInTheFirst) {
  std::string data;
  std::vector<std::string> names;
  FakeHandlers handlers;
  handlers.upload_corpus = [&](const auto& more, v1::UploadCorpusResponse& response) {
    for (v1::UploadCorpusRequest chunk; more(chunk);) {
      data += chunk.data();
      names.push_back(chunk.display_name());
    }
    response.set_corpus("corpora/abc");
    response.set_size_bytes(data.size());
    return FakeStatus{};
  };
  FakeServer server(handlers);
  std::string text = "x";
  while (text.size() < 700000) text += "\u6b6a";  // characters are cut between chunks
  std::istringstream in(text);
  uint64_t last = 0;
  const auto response = ClientOf(server)->UploadCorpus(in, "novel.txt", [&](uint64_t sent) {
    EXPECT_GT(sent, last);
    last = sent;
    return true;
  });
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->corpus(), "corpora/abc");
  EXPECT_EQ(data, text);
  EXPECT_EQ(last, text.size());
  EXPECT_THAT(names, ElementsAre("novel.txt", "", ""));
}

TEST(ClientOperations, StopsAnUploadAtTheFirstByteThatIsNotUtf8) {
  FakeHandlers handlers;
  handlers.upload_corpus = [&](const auto& more, auto&) {
    for (v1::UploadCorpusRequest chunk; more(chunk);) {
    }
    return FakeStatus{};
  };
  FakeServer server(handlers);
  std::istringstream bad(std::string(300000, 'a') + "\xFF");
  EXPECT_THAT(ClientOf(server)->UploadCorpus(bad, "x", {}),
              StatusIs(absl::StatusCode::kInvalidArgument, "the text is not valid UTF-8 at byte 300000"));
  std::istringstream cut("abc\xE6\xAD");
  EXPECT_THAT(ClientOf(server)->UploadCorpus(cut, "x", {}),
              StatusIs(absl::StatusCode::kInvalidArgument, "the text is not valid UTF-8 at byte 3"));
}

TEST(ClientOperations, ReportsWhyTheServerEndedAnUpload) {
  FakeHandlers handlers;
  handlers.upload_corpus = [&](const auto& more, auto&) {
    v1::UploadCorpusRequest chunk;
    more(chunk);
    return FakeStatus{testing::kResourceExhausted, "over the limit of 1 MiB", "UPLOAD_TOO_LARGE"};
  };
  FakeServer server(handlers);
  std::istringstream in(std::string(8 << 20, 'a'));
  const auto response = ClientOf(server)->UploadCorpus(in, "x", {});
  EXPECT_THAT(response, StatusIs(absl::StatusCode::kResourceExhausted, "over the limit of 1 MiB"));
  EXPECT_EQ(ErrorReason(response.status()), "UPLOAD_TOO_LARGE");
}

TEST(ClientOperations, WatchesOnWhenTheConnectionBreaks) {
  std::atomic<int> calls = 0;
  FakeHandlers handlers;
  handlers.watch_operation = [&](const v1::WatchOperationRequest& request, const auto& stream) {
    EXPECT_EQ(request.name(), "operations/r/1");
    v1::WatchOperationResponse response;
    const bool first = ++calls == 1;
    *response.mutable_operation() = OperationIn(first ? v1::OPERATION_STATE_RUNNING : v1::OPERATION_STATE_INTERRUPTED);
    stream.write(response);
    return first ? FakeStatus{testing::kUnavailable, "lost"} : FakeStatus{};
  };
  FakeServer server(handlers);
  int changes = 0;
  const auto operation = ClientOf(server)->WatchOperation("operations/r/1", [&](const auto&) {
    ++changes;
    return true;
  });
  ASSERT_TRUE(operation.ok()) << operation.status();
  EXPECT_EQ(operation->state(), v1::OPERATION_STATE_INTERRUPTED);
  EXPECT_EQ(changes, 2);
}

TEST(ClientOperations, WatchesOnWhenAnotherReplicaAnswersForOneThatIsAway) {
  std::atomic<int> calls = 0;
  FakeHandlers handlers;
  handlers.watch_operation = [&](const auto&, const auto& stream) {
    const int call = ++calls;
    if (call == 2) return FakeStatus{testing::kNotFound, "replica b sees no operations/r/1", "OPERATION_NOT_FOUND"};
    if (call == 3) return FakeStatus{testing::kFailedPrecondition, "replica r runs it: ask there", "OTHER_REPLICA"};
    v1::WatchOperationResponse response;
    *response.mutable_operation() =
        OperationIn(call == 1 ? v1::OPERATION_STATE_RUNNING : v1::OPERATION_STATE_SUCCEEDED);
    stream.write(response);
    return call == 1 ? FakeStatus{testing::kUnavailable, "lost"} : FakeStatus{};
  };
  FakeServer server(handlers);
  const auto operation = ClientOf(server)->WatchOperation("operations/r/1", {});
  ASSERT_TRUE(operation.ok()) << operation.status();
  EXPECT_EQ(operation->state(), v1::OPERATION_STATE_SUCCEEDED);
  EXPECT_EQ(calls, 4);
}

TEST(ClientOperations, DoesNotWaitForAnOperationThatNobodyHasHeardOf) {
  std::atomic<int> calls = 0;
  FakeHandlers handlers;
  handlers.watch_operation = [&](const auto&, const auto&) {
    ++calls;
    return FakeStatus{testing::kNotFound, "there is no such operation", "OPERATION_NOT_FOUND"};
  };
  FakeServer server(handlers);
  EXPECT_THAT(ClientOf(server)->WatchOperation("operations/r/1", {}), StatusIs(absl::StatusCode::kNotFound, _));
  EXPECT_EQ(calls, 1);
}

TEST(ClientOperations, SaysWhichReplicaACallIsFor) {
  std::mutex mutex;
  std::map<std::string, std::string> asked;
  FakeHandlers handlers;
  handlers.asked = [&](const std::string& call, const std::string& replica) {
    const std::lock_guard lock(mutex);
    asked[call] = replica;
  };
  FakeServer server(handlers);
  const auto client = ClientOf(server);
  const std::string name = "operations/10.0.0.7/1";
  std::istringstream text("a");
  std::ostringstream out;
  (void)client->UploadCorpus(text, "x", {}, {.replica = "b"});
  (void)client->StartOperation({}, {.replica = "b"});
  (void)client->ListOperations(1, {.replica = "b"});
  // Their own name counts.
  (void)client->GetOperation(name, {.replica = "b"});
  (void)client->WatchOperation(name, {});
  (void)client->CancelOperation(name);
  (void)client->FetchResult(name, "", out);
  (void)client->GetReport(name);
  EXPECT_THAT(asked,
              ElementsAre(Pair("CancelOperation", "10.0.0.7"), Pair("FetchResult", "10.0.0.7"),
                          Pair("GetOperation", "10.0.0.7"), Pair("GetReport", "10.0.0.7"), Pair("ListOperations", "b"),
                          Pair("StartOperation", "b"), Pair("UploadCorpus", "b"), Pair("WatchOperation", "10.0.0.7")));
  asked.clear();
  (void)client->ListOperations(1);
  (void)client->GetOperation("no name");
  EXPECT_THAT(asked, IsEmpty());
}

TEST(ClientOperations, ListsAllPagesUpToALimit) {
  FakeHandlers handlers;
  handlers.list_operations = [](const v1::ListOperationsRequest& request, v1::ListOperationsResponse& response) {
    for (int i = 0; i < 2; ++i) *response.add_operations() = OperationIn(v1::OPERATION_STATE_SUCCEEDED);
    if (request.page_token() != "2") response.set_next_page_token(request.page_token() == "1" ? "2" : "1");
    return FakeStatus{};
  };
  FakeServer server(handlers);
  EXPECT_EQ(ClientOf(server)->ListOperations(0)->size(), 6u);
  EXPECT_EQ(ClientOf(server)->ListOperations(3)->size(), 3u);
}

TEST(ClientOperations, FetchesAResultInChunks) {
  FakeHandlers handlers;
  handlers.fetch_result = [](const auto&, const auto& stream) {
    for (const char* data : {"ab", "", "cd"}) {
      v1::FetchResultResponse response;
      response.set_data(data);
      stream.write(response);
    }
    return FakeStatus{};
  };
  FakeServer server(handlers);
  std::ostringstream out;
  EXPECT_EQ(*ClientOf(server)->FetchResult("operations/r/1", "", out), 4u);
  EXPECT_EQ(out.str(), "abcd");
}

// A piece of a table with a column of text and one of numbers.
v1::GetReportResponse Piece(const std::string& name, const std::vector<std::string>& words) {
  v1::GetReportResponse response;
  v1::ReportTable& table = *response.mutable_table();
  table.set_name(name);
  v1::ReportColumn& text = *table.add_columns();
  text.set_name("word");
  v1::ReportColumn& numbers = *table.add_columns();
  numbers.set_name("size");
  numbers.mutable_numbers();
  for (const std::string& word : words) {
    text.mutable_strings()->add_values(word);
    numbers.mutable_numbers()->add_values(static_cast<double>(word.size()));
  }
  return response;
}

TEST(ClientOperations, PutsAReportTogetherFromItsPieces) {
  FakeHandlers handlers;
  handlers.get_report = [](const auto& request, const auto& stream) {
    v1::GetReportResponse first;
    first.mutable_report()->set_title(request.name());
    stream.write(first);
    stream.write(Piece("a", {"one"}));
    v1::GetReportResponse titled = Piece("b", {"two", "three"});
    titled.mutable_table()->set_title("B");
    stream.write(titled);
    stream.write(Piece("b", {"four"}));
    return FakeStatus{};
  };
  FakeServer server(handlers);
  const auto report = ClientOf(server)->GetReport("operations/r/1");
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->title(), "operations/r/1");
  ASSERT_EQ(report->tables_size(), 2);
  EXPECT_EQ(report->tables(0).columns(0).strings().values_size(), 1);
  const v1::ReportTable& table = report->tables(1);
  EXPECT_EQ(table.title(), "B");
  EXPECT_THAT(table.columns(0).strings().values(), ElementsAre("two", "three", "four"));
  EXPECT_THAT(table.columns(1).numbers().values(), ElementsAre(3, 5, 4));
}

TEST(ClientOperations, RefusesPiecesOfAReportThatDoNotFitTogether) {
  for (const bool other_name : {false, true}) {
    FakeHandlers handlers;
    handlers.get_report = [&](const auto&, const auto& stream) {
      stream.write(Piece("a", {"one"}));
      v1::GetReportResponse second = Piece("a", {"two"});
      v1::ReportColumn& column = *second.mutable_table()->mutable_columns(1);
      if (other_name) {
        column.set_name("length");
      } else {
        column.mutable_strings()->add_values("3");
      }
      stream.write(second);
      return FakeStatus{};
    };
    FakeServer server(handlers);
    EXPECT_THAT(ClientOf(server)->GetReport("operations/r/1"),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("do not fit together")));
  }
}

TEST(ClientOperations, ReceivesMessagesOverFourMebibytes) {
  FakeHandlers handlers;
  handlers.fetch_result = [](const auto&, const auto& stream) {
    v1::FetchResultResponse response;
    response.set_data(std::string((4 << 20) + 1, 'a'));
    stream.write(response);
    return FakeStatus{};
  };
  FakeServer server(handlers);
  std::ostringstream out;
  EXPECT_EQ(*ClientOf(server)->FetchResult("operations/r/1", "", out), static_cast<uint64_t>((4 << 20) + 1));
}

}  // namespace
}  // namespace gatehouse::client
