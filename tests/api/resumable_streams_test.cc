// Streams that can be resumed: the ids of their events, GET /v1/streams/STREAM, and what is kept.
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/api/kept_streams.h"
#include "src/base/clock.h"
#include "tests/api/http_api_rig.h"

namespace baton::api {

using http::HttpClientGone;
using http::HttpHeaders;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

namespace {

constexpr const char* kStreams = "/v1/streams/";

// Outlives the answers that the fake router still holds.
struct StreamsOfTheApi {
  FakeClock clock_;
  obs::MetricsRegistry stream_registry_;
  KeptStreams streams_{&stream_registry_, clock_};
};

// The API with kept streams.
class ResumableApiTest : public StreamsOfTheApi, public HttpApiTest {
 protected:
  ResumableApiTest() : HttpApiTest(true, &streams_) {}

  std::shared_ptr<FakeResponder> Ask(const std::string& path, const std::string& body,
                                     const std::string& resumable = "1") {
    auto responder = Send("POST", path, body,
                          {{"Content-Type", "application/json"}, {"X-Baton-Resumable", resumable}});
    EXPECT_TRUE(responder->Wait());
    return responder;
  }
  std::shared_ptr<FakeResponder> Resume(const std::string& stream, const std::string& last_id) {
    HttpHeaders headers;
    if (!last_id.empty()) headers.Set("Last-Event-ID", last_id);
    auto responder = Send("GET", kStreams + stream, "", std::move(headers));
    EXPECT_TRUE(responder->Wait());
    return responder;
  }
  static std::string Code(const FakeResponder& responder) {
    return Text(responder, {"error", "code"});
  }
};

// An event's id and the bytes after the event.
struct IdAndRest {
  std::string id;
  std::string rest;
};

std::vector<IdAndRest> IdsOf(const std::string& body) {
  std::vector<IdAndRest> ids;
  for (size_t at = 0; at < body.size();) {
    const size_t end = body.find("\n\n", at);
    EXPECT_NE(end, std::string::npos);
    if (end == std::string::npos) break;
    const std::string event = body.substr(at, end - at);
    at = end + 2;
    if (event == "data: [DONE]") continue;
    EXPECT_THAT(event, StartsWith("id: "));
    ids.push_back({event.substr(4, event.find('\n') - 4), body.substr(at)});
  }
  return ids;
}

struct Asked {
  const char* path;
  std::string body;
};

std::vector<Asked> EverySurface() {
  return {
      {kChatPath, kHello + R"(,"stream":true,"n":2,"stream_options":{"include_usage":true}})"},
      {kCompletionPath, R"({"prompt":"ab","stream":true})"},
      {kCompletionPath, R"({"prompt":"ab","stream":true,"echo":true,"logprobs":0})"},
      {"/v1/messages", kHello + R"(,"max_tokens":9,"stream":true})"},
      {"/v1/responses", R"({"input":"hello","stream":true})"},
  };
}

TEST_F(ResumableApiTest, EveryIdResumesWithTheSameBytes) {
  AnswerWith("Hello!");
  for (const Asked& asked : EverySurface()) {
    const auto whole = Ask(asked.path, asked.body);
    ASSERT_EQ(whole->status, 200) << asked.path << whole->body;
    const std::string stream = whole->Header("X-Baton-Stream");
    EXPECT_EQ(stream.size(), 32u);
    const std::vector<IdAndRest> ids = IdsOf(whole->body);
    ASSERT_GT(ids.size(), 6u) << whole->body;
    std::set<std::string> unique;
    for (const IdAndRest& one : ids) {
      EXPECT_TRUE(unique.insert(one.id).second) << one.id;
      EXPECT_THAT(one.id, StartsWith(stream + "."));
      const auto rest = Resume(stream, one.id);
      // Nothing is left of a surface that ends without a mark.
      EXPECT_EQ(rest->status, one.rest.empty() ? 204 : 200) << one.id;
      EXPECT_EQ(rest->body, one.rest) << asked.path << " after " << one.id;
    }
    for (int token = 0; token < 6; ++token) {
      EXPECT_TRUE(unique.contains(stream + ".0." + std::to_string(token))) << asked.path;
    }
    const auto again = Resume(stream, "");
    EXPECT_EQ(again->body, whole->body);
    EXPECT_EQ(again->Header("Content-Type"), "text/event-stream");
    EXPECT_EQ(again->Header("X-Baton-Stream"), stream);
  }
}

TEST_F(ResumableApiTest, WithoutTheHeaderAStreamIsAsEver) {
  AnswerWith("Hi");
  for (const std::string value : {"0", "false"}) {
    const auto plain = Ask(kChatPath, kHello + R"(,"stream":true})", value);
    EXPECT_EQ(plain->Header("X-Baton-Stream"), "");
    EXPECT_EQ(plain->body.find("id: "), std::string::npos);
    EXPECT_EQ(plain->filler, ": ping\n\n");
  }
  const auto whole = Ask(kChatPath, kHello + "}");
  EXPECT_EQ(whole->status, 200);
  EXPECT_THAT(whole->Header("X-Baton-Ignored-Fields"), HasSubstr("X-Baton-Resumable"));
}

// Python's clients hold on to the last id, and take an empty line after it for an event.
TEST_F(ResumableApiTest, NoEmptyLineFollowsAPing) {
  AnswerWith("Hi");
  for (const Asked& asked : EverySurface()) {
    const bool is_event = std::string(asked.path) == "/v1/messages";
    EXPECT_EQ(Ask(asked.path, asked.body)->filler,
              is_event ? "event: ping\ndata: {\"type\":\"ping\"}\n\n" : ": ping\n")
        << asked.path;
  }
}

TEST_F(ResumableApiTest, BadHeadersAreNamed) {
  AnswerWith("Hi");
  for (const std::string value : {"2", "", "yes"}) {
    const auto refused = Ask(kChatPath, kHello + R"(,"stream":true})", value);
    EXPECT_EQ(refused->status, 400) << value;
    EXPECT_THAT(refused->body, HasSubstr("X-Baton-Resumable"));
  }
  const auto ollama = Ask("/api/chat", R"({"model":"toy",)" + kHello.substr(1) + "}");
  EXPECT_EQ(ollama->status, 400) << "lines of JSON have no ids";
  const auto whole = Ask(kChatPath, kHello + R"(,"stream":true})");
  const std::string stream = whole->Header("X-Baton-Stream");
  for (const std::string& id : {std::string("x"), stream + ".0", stream + ".0.x", stream + ".0.99",
                                stream + ".9.0", std::string(32, '0') + ".0.0"}) {
    const auto refused = Resume(stream, id);
    EXPECT_EQ(refused->status, 400) << id;
    EXPECT_THAT(refused->body, HasSubstr("Last-Event-ID"));
  }
  const auto unknown = Resume(std::string(32, '0'), "");
  EXPECT_EQ(unknown->status, 404);
  EXPECT_EQ(Code(*unknown), "stream_not_found");
  EXPECT_EQ(Send("DELETE", kStreams + stream)->status, 405);
}

TEST_F(ResumableApiTest, AnotherTenantsStreamIsForbidden) {
  const auto reader = std::make_shared<FakeResponder>();
  const auto stream = streams_.Make("other", reader);
  ASSERT_TRUE(stream->StartStream(200, {{"Content-Type", "text/event-stream"}}));
  const auto refused = Resume(stream->name(), "");
  EXPECT_EQ(refused->status, 403);
  EXPECT_EQ(Code(*refused), "stream_of_another_tenant");
  EXPECT_FALSE(reader->aborted) << "its reader keeps it";
}

TEST_F(ResumableApiTest, AnAnswerGoesOnWithoutItsClientAndIsGivenUpInTheEnd) {
  auto first = Send("POST", kChatPath, kHello + R"(,"stream":true})",
                    {{"Content-Type", "application/json"}, {"X-Baton-Resumable", "1"}});
  const auto submitted = submitter_.WaitSubmitted();
  ASSERT_TRUE(first->WaitOnClosedSet());
  submitted.sink->OnTaken();
  const std::string stream = first->Header("X-Baton-Stream");
  ASSERT_EQ(stream.size(), 32u);
  first->Close();
  clock_.AdvanceUs(KeptStreamsLimits{}.unread_us - 1);
  streams_.Sweep();
  const auto second = Send("GET", kStreams + stream);
  EXPECT_EQ(second->status, 200);
  second->Close();
  clock_.AdvanceUs(KeptStreamsLimits{}.unread_us);
  streams_.Sweep();
  EXPECT_TRUE(submitter_.WaitCancelled(submitted.uid));
  EXPECT_EQ(submitter_.last_cause, router::CancelCause::kClientLeft);
  EXPECT_EQ(Resume(stream, "")->status, 404);
}

// One stream, written by the test.
class KeptStreamsTest : public testing::Test {
 protected:
  std::shared_ptr<ResumableStream> Start(KeptStreams* streams,
                                         const std::shared_ptr<FakeResponder>& reader,
                                         const std::string& tenant = "") {
    auto stream = streams->Make(tenant, reader);
    EXPECT_TRUE(stream->StartStream(200, {{"Content-Type", "text/event-stream"}}));
    return stream;
  }
  static std::string Event(const ResumableStream& stream, int token, size_t padding = 0) {
    return "id: " + stream.name() + ".0." + std::to_string(token) +
           "\ndata: " + std::string(padding, 'x') + std::to_string(token) + "\n\n";
  }

  FakeClock clock_;
  obs::MetricsRegistry registry_;
};

TEST_F(KeptStreamsTest, ANewReaderTakesOverAndGetsWhatComes) {
  KeptStreams streams(&registry_, clock_);
  const auto first = std::make_shared<FakeResponder>();
  const auto stream = Start(&streams, first);
  ASSERT_TRUE(stream->Write(Event(*stream, 0)));
  ASSERT_TRUE(stream->Write(Event(*stream, 1)));
  const auto second = std::make_shared<FakeResponder>();
  EXPECT_EQ(stream->Attach(second, {}, stream->name() + ".0.0"), ResumableStream::Entry::kTaken);
  EXPECT_TRUE(first->aborted) << "the server may not have noticed that it broke";
  ASSERT_TRUE(stream->Write(Event(*stream, 2)));
  ASSERT_TRUE(stream->Finish());
  EXPECT_TRUE(second->Wait());
  EXPECT_EQ(second->body, Event(*stream, 1) + Event(*stream, 2));
  EXPECT_EQ(first->body, Event(*stream, 0) + Event(*stream, 1));
}

TEST_F(KeptStreamsTest, AFailedStreamEndsWithItsConnection) {
  KeptStreams streams(&registry_, clock_);
  const auto first = std::make_shared<FakeResponder>();
  const auto stream = Start(&streams, first);
  ASSERT_TRUE(stream->Write(Event(*stream, 0)));
  first->Close();
  ASSERT_TRUE(stream->Write("data: {\"error\":{}}\n\n"));
  ASSERT_TRUE(stream->FinishAndClose());
  const auto second = std::make_shared<FakeResponder>();
  EXPECT_EQ(stream->Attach(second, {}, ""), ResumableStream::Entry::kTaken);
  EXPECT_TRUE(second->closes);
  EXPECT_THAT(second->body, EndsWith("data: {\"error\":{}}\n\n"));
}

TEST_F(KeptStreamsTest, AFinishedStreamIsKeptForItsTime) {
  KeptStreams streams(&registry_, clock_);
  const auto stream = Start(&streams, std::make_shared<FakeResponder>());
  ASSERT_TRUE(stream->Finish());
  clock_.AdvanceUs(KeptStreamsLimits{}.keep_us - 1);
  EXPECT_NE(streams.Find(stream->name()), nullptr);
  clock_.AdvanceUs(1);
  EXPECT_EQ(streams.Find(stream->name()), nullptr);
  EXPECT_THAT(registry_.Expose(), HasSubstr("baton_resumable_evictions_total{reason=\"age\"} 1"));
}

TEST_F(KeptStreamsTest, TheFirstToFinishMakesRoom) {
  const KeptStreamsLimits limits = {.max_bytes = 100'000, .max_stream_bytes = 60'000};
  KeptStreams streams(&registry_, clock_, limits);
  std::vector<std::string> names;
  for (int i = 0; i < 5; ++i) {
    const auto stream = Start(&streams, std::make_shared<FakeResponder>());
    ASSERT_TRUE(stream->Write(Event(*stream, 0, 30'000)));
    ASSERT_TRUE(stream->Finish());
    names.push_back(stream->name());
  }
  EXPECT_EQ(streams.Find(names[0]), nullptr);
  EXPECT_EQ(streams.Find(names[1]), nullptr);
  EXPECT_NE(streams.Find(names[3]), nullptr);
  EXPECT_NE(streams.Find(names[4]), nullptr);
}

TEST_F(KeptStreamsTest, TheTenantThatKeepsMostMakesRoom) {
  const KeptStreamsLimits limits = {.max_bytes = 140'000, .max_stream_bytes = 60'000};
  KeptStreams streams(&registry_, clock_, limits);
  std::vector<std::string> names;
  for (const char* tenant : {"small", "large", "large", "large", "large", "small", "small"}) {
    const auto stream = Start(&streams, std::make_shared<FakeResponder>(), tenant);
    ASSERT_TRUE(stream->Write(Event(*stream, 0, 30'000)));
    ASSERT_TRUE(stream->Finish());
    names.push_back(stream->name());
  }
  std::vector<bool> is_kept;
  for (const std::string& name : names) is_kept.push_back(streams.Find(name) != nullptr);
  EXPECT_THAT(is_kept, testing::ElementsAre(false, false, false, true, true, true, true))
      << "the last one makes its own tenant the largest";
}

TEST_F(KeptStreamsTest, AStreamThatIsReadMakesNoRoom) {
  const KeptStreamsLimits limits = {.max_bytes = 70'000, .max_stream_bytes = 60'000};
  KeptStreams streams(&registry_, clock_, limits);
  const auto slow = Start(&streams, std::make_shared<FakeResponder>());
  ASSERT_TRUE(slow->Write(Event(*slow, 0, 30'000)));
  ASSERT_TRUE(slow->Finish());  // `slow` stands for the connection that still sends it
  const auto idle = Start(&streams, std::make_shared<FakeResponder>())->name();
  ASSERT_TRUE(streams.Find(idle)->Finish());
  const auto stream = Start(&streams, std::make_shared<FakeResponder>());
  ASSERT_TRUE(stream->Write(Event(*stream, 0, 40'000)));
  EXPECT_EQ(streams.Find(idle), nullptr);
  EXPECT_EQ(streams.Find(stream->name()), nullptr) << "it found no room";
  EXPECT_NE(streams.Find(slow->name()), nullptr) << "its memory would not have come back";
}

TEST_F(KeptStreamsTest, TheTenantWithMostUnreadStreamsEndsOne) {
  const KeptStreamsLimits limits = {.max_unread = 3};
  KeptStreams streams(&registry_, clock_, limits);
  std::vector<bool> gone(5, false);
  std::vector<std::shared_ptr<ResumableStream>> all;
  const std::vector<std::string> tenants = {"small", "large", "large", "large", "small"};
  for (size_t i = 0; i < gone.size(); ++i) {
    const auto reader = std::make_shared<FakeResponder>();
    all.push_back(Start(&streams, reader, tenants[i]));
    all.back()->OnClosed([&gone, i](HttpClientGone /*how*/) { gone[i] = true; });
    reader->Close();
  }
  EXPECT_THAT(gone, testing::ElementsAre(true, true, false, false, false))
      << "of equals the oldest";
}

TEST_F(KeptStreamsTest, AStreamThatGrowsTooLongIsItsReadersAlone) {
  const KeptStreamsLimits limits = {.max_bytes = 1'000'000, .max_stream_bytes = 60'000};
  KeptStreams streams(&registry_, clock_, limits);
  const auto reader = std::make_shared<FakeResponder>();
  const auto stream = Start(&streams, reader);
  std::string all;
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(stream->Write(Event(*stream, i, 10'000)));
    all += Event(*stream, i, 10'000);
  }
  ASSERT_TRUE(stream->Finish());
  EXPECT_EQ(reader->body, all) << "its reader misses nothing";
  EXPECT_EQ(streams.Find(stream->name()), nullptr);
  EXPECT_THAT(registry_.Expose(), HasSubstr("baton_resumable_stream_bytes 0"));
}

TEST_F(KeptStreamsTest, TooManyUnreadStreamsEndTheFirst) {
  const KeptStreamsLimits limits = {.max_unread = 2};
  KeptStreams streams(&registry_, clock_, limits);
  std::vector<bool> gone(3, false);
  std::vector<std::shared_ptr<ResumableStream>> all;
  for (size_t i = 0; i < gone.size(); ++i) {
    const auto reader = std::make_shared<FakeResponder>();
    all.push_back(Start(&streams, reader));
    all.back()->OnClosed([&gone, i](HttpClientGone /*how*/) { gone[i] = true; });
    reader->Close();
  }
  EXPECT_THAT(gone, testing::ElementsAre(true, false, false));
  streams.BeginDrain();
  EXPECT_THAT(gone, testing::ElementsAre(true, true, true)) << "nobody could come any more";
}

TEST_F(KeptStreamsTest, BeforeItsHeaderAStreamEndsWithItsConnection) {
  KeptStreams streams(&registry_, clock_);
  const auto reader = std::make_shared<FakeResponder>();
  const auto stream = streams.Make("", reader);
  bool is_gone = false;
  stream->OnClosed([&](HttpClientGone /*how*/) { is_gone = true; });
  reader->Close();
  EXPECT_TRUE(is_gone) << "nobody knows its name";
  EXPECT_FALSE(stream->StartStream(200, {}));
}

}  // namespace
}  // namespace baton::api
