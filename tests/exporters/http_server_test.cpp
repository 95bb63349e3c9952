#include "exporters/http_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "exporters/http_get.h"

namespace foreshock {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

// Whether one of three attempts keeps its bound of time. A fault of the server breaks it each time, a busy
// machine does so now and then.
bool holds_once(const std::function<bool()>& attempt) {
  for (int n = 0; n < 3; ++n)
    if (attempt()) return true;
  return false;
}

// A client that may misbehave.
class Client {
 public:
  explicit Client(int port) : file_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(file_, reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
    const timeval patience{10, 0};
    setsockopt(file_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  }
  ~Client() { close(file_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void say(const std::string& text) const { send(file_, text.data(), text.size(), MSG_NOSIGNAL); }
  // Until the server closes.
  std::string hear() const {
    std::string all;
    char piece[4096];
    for (ssize_t n; (n = recv(file_, piece, sizeof piece, 0)) > 0;) all.append(piece, static_cast<size_t>(n));
    return all;
  }
  // Waits until the server has sent `count` bytes or closes. Returns the number of bytes.
  size_t hear(size_t count) const {
    std::string all(count, '\0');
    return static_cast<size_t>(std::max<ssize_t>(recv(file_, all.data(), count, MSG_WAITALL), 0));
  }
  // Returns the number of bytes that have arrived.
  size_t waiting_bytes() const {
    int count = 0;
    return ioctl(file_, FIONREAD, &count) == 0 ? static_cast<size_t>(count) : 0;
  }

 private:
  int file_;
};

class Server : public testing::Test {
 protected:
  Server() {
    EXPECT_TRUE(server_.start("127.0.0.1", 0, &error_)) << error_;
    publish("ok");
  }
  void publish(const std::string& health, const std::string& state = "{}") {
    Registry registry;
    registry.set(Metric::kLoss, {"r", "0"}, 1.5);
    server_.publish(std::make_shared<Published>(Published{registry.snapshot(), state, true, health}));
  }
  std::string get(const std::string& path) {
    std::string body;
    EXPECT_TRUE(http_get("127.0.0.1", server_.port(), path, 60'000, &body, &error_)) << error_;
    return body;
  }
  std::string raw(const std::string& request) const {
    const Client client(server_.port());
    client.say(request);
    return client.hear();
  }

  HttpServer server_;
  std::string error_;
};

TEST_F(Server, ServesEachPage) {
  EXPECT_THAT(get("/metrics"), HasSubstr("foreshock_loss{run=\"r\",rank=\"0\"} 1.5\n"));
  EXPECT_EQ(get("/api/v1/state"), "{}");
  EXPECT_EQ(get("/healthz"), "ok\n");
  EXPECT_THAT(get("/"), StartsWith("<!doctype html>"));
  publish("still ok");
  EXPECT_EQ(get("/healthz"), "still ok\n");
}

TEST_F(Server, EveryReplyCarriesTheSecurityHeaders) {
  for (const char* path : {"/", "/metrics", "/nothing"}) {
    const std::string reply =
        raw(std::string("GET ") + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    EXPECT_THAT(reply, HasSubstr("Content-Security-Policy: default-src 'self'"));
    EXPECT_THAT(reply, HasSubstr("X-Content-Type-Options: nosniff"));
    EXPECT_THAT(reply, Not(HasSubstr("Access-Control")));
  }
}

TEST_F(Server, RefusesWithTheRightStatus) {
  const std::string host = "Host: localhost\r\n";
  EXPECT_THAT(raw("POST / HTTP/1.1\r\n" + host + "Content-Length: 3\r\nConnection: close\r\n\r\nabc"),
              StartsWith("HTTP/1.1 405"));
  EXPECT_THAT(raw("GET / HTTP/1.1\r\n" + host + "Content-Length: 3\r\n\r\nabc"), StartsWith("HTTP/1.1 413"));
  EXPECT_THAT(raw("GET / HTTP/1.1\r\n" + host + "Content-Length: 99999999999\r\n\r\n"),
              StartsWith("HTTP/1.1 413"));
  EXPECT_THAT(raw("GET /x HTTP/1.1\r\n" + host + "Connection: close\r\n\r\n"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(raw("GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n"),
              StartsWith("HTTP/1.1 403"));
  EXPECT_THAT(raw("GET / HTTP/1.1\r\n" + host + host + "\r\n"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(raw("\x16\x03\x01 this is not HTTP\r\n\r\n"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(raw("GET / HTTP/1.1\r\n" + host + "X: " + std::string(20000, 'x') + "\r\n\r\n"),
              StartsWith("HTTP/1.1 431"));
}

TEST_F(Server, HeadRepliesHaveALengthAndNoBody) {
  const std::string reply = raw("HEAD /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(reply, HasSubstr("Content-Length: 3\r\n"));
  EXPECT_THAT(reply, testing::EndsWith("\r\n\r\n"));
}

TEST_F(Server, KeepsAConnectionForPipelinedRequests) {
  const std::string one = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n";
  const std::string replies = raw(one + "\r\n" + one + "\r\n" + one + "Connection: close\r\n\r\n");
  size_t count = 0;
  for (size_t at = replies.find("HTTP/1.1 200"); at != std::string::npos;
       at = replies.find("HTTP/1.1 200", at + 1))
    ++count;
  EXPECT_EQ(count, 3u);
}

// One connection of these clients is accepted in each turn of the server's loop, the last client's at the
// end. Until then each of the others may have been served once, and a further request in each turn.
TEST_F(Server, PipelinedRequestsDoNotDelayOtherClients) {
  constexpr size_t kClients = 100, kRequests = 20;
  const std::string one = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
  std::string many;
  for (size_t n = 0; n < kRequests; ++n) many += one;
  Registry registry;
  // The server's thread destroys metrics and a history when a request shows newer ones. This stops it until
  // all requests are sent, and shows how many replies have left before the last client's.
  std::promise<void> all_sent;
  std::vector<std::unique_ptr<Client>> greedy;
  size_t replies_before = 0;
  std::promise<void> counted;
  const auto old_metrics = [&](const Snapshot*) { all_sent.get_future().wait(); };
  const auto old_history = [&](const std::vector<HistoryTable>* history) {
    delete history;
    for (const auto& client : greedy) replies_before += client->waiting_bytes();
    counted.set_value();
  };
  const std::shared_ptr<const Snapshot> older = registry.snapshot(), newer = registry.snapshot();
  ASSERT_NE(older, newer);
  {
    auto published = std::make_shared<Published>();
    published->metrics = std::shared_ptr<const Snapshot>(older.get(), old_metrics);
    published->history =
        std::shared_ptr<const std::vector<HistoryTable>>(new std::vector<HistoryTable>, old_history);
    published->health_text = "ok";
    server_.publish(published);
  }
  get("/metrics");
  get("/api/v1/history");
  auto published = std::make_shared<Published>();
  published->metrics = newer;
  published->health_text = "ok";
  server_.publish(published);
  const size_t bytes_of_reply =
      raw("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nx\r\n\r\n").find("HTTP/1.1 4");
  ASSERT_NE(bytes_of_reply, std::string::npos);

  const Client stopper(server_.port());
  stopper.say("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
  for (size_t n = 0; n < kClients; ++n) {
    greedy.push_back(std::make_unique<Client>(server_.port()));
    greedy.back()->say(many);
  }
  const Client last(server_.port());
  last.say("GET /api/v1/history HTTP/1.1\r\nHost: localhost\r\n\r\n");
  all_sent.set_value();
  counted.get_future().wait();
  replies_before /= bytes_of_reply;
  EXPECT_GE(replies_before, kClients / 2);
  // 8: turns in which the last request is read after its connection was accepted.
  EXPECT_LE(replies_before, 2 * kClients + 8);
  for (const auto& client : greedy)
    EXPECT_EQ(client->hear(kRequests * bytes_of_reply), kRequests * bytes_of_reply);
}

TEST_F(Server, HalfOpenClientsDoNotDelayOtherClients) {
  EXPECT_TRUE(holds_once([&] {
    std::vector<std::unique_ptr<Client>> idle;
    for (int i = 0; i < 100; ++i) {
      idle.push_back(std::make_unique<Client>(server_.port()));
      if (i % 2 == 0) idle.back()->say("GET /metrics HTT");
    }
    double longest_ms = 0;
    for (int i = 0; i < 10; ++i) {
      const auto begin = Clock::now();
      get("/metrics");
      longest_ms = std::max(longest_ms, ms_since(begin));
    }
    // Whoever waited for one of them would wait for a second, after which it is dropped (below).
    return longest_ms < 1000;
  }));
}

TEST_F(Server, DropsAnIncompleteRequestAfterASecond) {
  EXPECT_TRUE(holds_once([&] {
    const auto begin = Clock::now();
    EXPECT_EQ(raw("GET /metrics HTT"), "");
    EXPECT_GT(ms_since(begin), 800);
    return ms_since(begin) < 3000;
  }));
}

TEST_F(Server, DropsAClientThatDoesNotRead) {
  const size_t size = 32 << 20;  // more than the socket buffers hold
  publish("ok", std::string(size, 'x'));
  std::vector<std::unique_ptr<Client>> deaf;
  EXPECT_TRUE(holds_once([&] {
    deaf.push_back(std::make_unique<Client>(server_.port()));
    deaf.back()->say("GET /api/v1/state HTTP/1.1\r\nHost: localhost\r\n\r\n");
    const auto begin = Clock::now();
    get("/metrics");
    return ms_since(begin) < 500;
  }));
  std::this_thread::sleep_for(std::chrono::seconds(5));  // longer than the server waits for a reply to leave
  for (const auto& client : deaf) EXPECT_LT(client->hear().size(), size);
}

TEST_F(Server, ClosesTheOldestIdleConnectionAtTheLimit) {
  std::vector<std::unique_ptr<Client>> crowd;
  for (int i = 0; i < 300; ++i) crowd.push_back(std::make_unique<Client>(server_.port()));
  EXPECT_EQ(get("/healthz"), "ok\n");
  const auto begin = Clock::now();
  EXPECT_EQ(crowd.front()->hear(), "");
  EXPECT_LT(ms_since(begin), 5000) << "closed, long before it would have been for silence";
  crowd.back()->say("GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(crowd.back()->hear(), HasSubstr("200"));
}

TEST_F(Server, SurvivesAClientThatLeavesDuringAReply) {
  publish("ok", std::string(16 << 20, 'x'));
  for (int i = 0; i < 5; ++i)
    Client(server_.port()).say("GET /api/v1/state HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(get("/healthz"), "ok\n");
}

TEST_F(Server, PublishesWhileClientsRead) {
  std::atomic<bool> done{false};
  std::thread writer([&] {
    for (int i = 0; !done; ++i) publish("round " + std::to_string(i));
  });
  for (int i = 0; i < 50; ++i) {
    EXPECT_THAT(get("/healthz"), testing::AnyOf(StartsWith("round "), StartsWith("ok")));
    get("/metrics");
  }
  done = true;
  writer.join();
}

TEST_F(Server, ReportsAPortThatIsTaken) {
  HttpServer second;
  EXPECT_FALSE(second.start("localhost", server_.port(), &error_));
  EXPECT_EQ(error_, "cannot listen on '127.0.0.1': port " + std::to_string(server_.port()) +
                        ": Address already in use");
}

TEST_F(Server, TakesTheNextFreePortOfARange) {
  HttpServer second;
  ASSERT_TRUE(second.start("localhost", server_.port(), &error_, "", server_.port() + 100)) << error_;
  EXPECT_GT(second.port(), server_.port());
  EXPECT_LE(second.port(), server_.port() + 100);
}

TEST_F(Server, StopsAtOnceAndStartsAgain) {
  EXPECT_TRUE(holds_once([&] {
    const Client idle(server_.port());
    get("/healthz");
    const auto begin = Clock::now();
    server_.stop();
    server_.stop();
    const bool was_at_once = ms_since(begin) < 500;
    EXPECT_EQ(idle.hear(), "");
    EXPECT_TRUE(server_.start("127.0.0.1", 0, &error_)) << error_;
    EXPECT_EQ(get("/healthz"), "ok\n");
    return was_at_once;
  }));
}

TEST(HttpServer, ServesOnlyLoopbackWithoutAToken) {
  for (const char* address : {"0.0.0.0", "::", "10.0.0.1", "", "example.com", "unix:"}) {
    HttpServer server;
    std::string error;
    EXPECT_FALSE(server.start(address, 0, &error)) << address;
    EXPECT_THAT(error, HasSubstr("cannot listen on '" + std::string(address) + "'"));
    EXPECT_EQ(error.find('\n'), std::string::npos);
  }
}

class ServerWithSecret : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "server-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    token_file_ = directory_ + "/token";
    std::ofstream(token_file_) << "0123456789abcdef";
    chmod(token_file_.c_str(), 0600);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::string directory_, token_file_, body_, error_;
  HttpServer server_;
};

TEST_F(ServerWithSecret, RequiresTheTokenExceptForHealth) {
  ASSERT_TRUE(server_.start("0.0.0.0", 0, &error_, token_file_)) << error_;
  const auto get = [&](const char* path, const char* token) {
    return http_get("0.0.0.0", server_.port(), path, 5000, &body_, &error_, token);
  };
  for (const char* path :
       {"/", "/metrics", "/api/v1/state", "/api/v1/targets", "/page.js", "/page.css", "/nothing"}) {
    EXPECT_FALSE(get(path, "")) << path;
    EXPECT_THAT(error_, HasSubstr("401"));
    EXPECT_FALSE(get(path, "0123456789abcdee")) << path;
    EXPECT_THAT(error_, HasSubstr("401"));
  }
  for (const char* path : {"/", "/metrics", "/api/v1/state", "/api/v1/targets", "/page.js", "/page.css"})
    EXPECT_TRUE(get(path, "0123456789abcdef")) << path << " " << error_;
  EXPECT_TRUE(get("/healthz", "")) << error_;
  const Client named(server_.port());
  named.say(
      "GET /metrics HTTP/1.1\r\nHost: node7.example:9847\r\nAuthorization: Bearer 0123456789abcdef\r\n"
      "Connection: close\r\n\r\n");
  EXPECT_THAT(named.hear(), HasSubstr("200 OK")) << "with a token any name of this host will do";
  const Client twice(server_.port());
  twice.say("GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n");
  EXPECT_THAT(twice.hear(), HasSubstr("400"));
  const Client asked(server_.port());
  asked.say("GET / HTTP/1.0\r\nHost: a\r\n\r\n");
  EXPECT_THAT(asked.hear(), HasSubstr("WWW-Authenticate: Bearer realm="));
}

TEST_F(ServerWithSecret, DoesNotStartWithAnInvalidToken) {
  chmod(token_file_.c_str(), 0644);
  EXPECT_FALSE(server_.start("127.0.0.1", 0, &error_, token_file_));
  EXPECT_THAT(error_, HasSubstr("chmod 600"));
}

TEST_F(ServerWithSecret, SocketIsReadableByItsOwnerOnly) {
  const std::string place = "unix:" + directory_ + "/agent.sock";
  ASSERT_TRUE(server_.start(place, 9847, &error_)) << error_;
  EXPECT_EQ(server_.endpoint(), place);
  EXPECT_EQ(server_.port(), 0);
  struct stat status = {};
  ASSERT_EQ(stat((directory_ + "/agent.sock").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  EXPECT_TRUE(http_get(place, 0, "/healthz", 5000, &body_, &error_)) << error_;
  HttpServer second;
  EXPECT_FALSE(second.start(place, 0, &error_)) << "somebody answers there";
  EXPECT_TRUE(http_get(place, 0, "/healthz", 5000, &body_, &error_)) << error_;
  server_.stop();
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/agent.sock"));
}

TEST_F(ServerWithSecret, TakesOverTheSocketOfAKilledAgent) {
  const std::string path = directory_ + "/agent.sock";
  const int left = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, path.c_str());
  ASSERT_EQ(bind(left, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  close(left);
  ASSERT_TRUE(server_.start("unix:" + path, 0, &error_)) << error_;
  EXPECT_TRUE(http_get("unix:" + path, 0, "/healthz", 5000, &body_, &error_)) << error_;
  std::ofstream(directory_ + "/file") << "text";
  HttpServer second;
  EXPECT_FALSE(second.start("unix:" + directory_ + "/file", 0, &error_)) << "not a socket: left alone";
  EXPECT_TRUE(std::filesystem::exists(directory_ + "/file"));
}

// The test ends only if none of these sockets makes the server wait.
TEST_F(ServerWithSecret, LeavesTheSocketOfAnotherProgram) {
  const std::string path = directory_ + "/other.sock";
  for (const int type : {SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET}) {
    for (const bool listens : {false, true}) {
      if (type == SOCK_DGRAM && listens) continue;
      const int other = socket(AF_UNIX, type, 0);
      sockaddr_un address = {};
      address.sun_family = AF_UNIX;
      std::strcpy(address.sun_path, path.c_str());
      ASSERT_EQ(bind(other, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
      const int client = socket(AF_UNIX, type | SOCK_NONBLOCK, 0);
      if (listens) {  // with a full queue
        ASSERT_EQ(listen(other, 0), 0);
        ASSERT_EQ(connect(client, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
      }
      EXPECT_FALSE(server_.start("unix:" + path, 0, &error_));
      EXPECT_THAT(error_, HasSubstr("Address already in use"));
      EXPECT_TRUE(std::filesystem::exists(path));
      close(client);
      close(other);
      unlink(path.c_str());
    }
  }
}

TEST(HttpGet, ReportsAnErrorInOneLine) {
  std::string body, error;
  EXPECT_FALSE(http_get("example.com", 80, "/", 100, &body, &error));
  EXPECT_THAT(error, HasSubstr("not a numeric address"));
  EXPECT_FALSE(http_get("unix:" + std::string(200, 'x'), 80, "/", 100, &body, &error));
  EXPECT_FALSE(http_get("127.0.0.1", 0, "/", 100, &body, &error));
  EXPECT_FALSE(http_get("127.0.0.1", 1, "/", 500, &body, &error));
  EXPECT_THAT(error, HasSubstr("refused"));
  EXPECT_FALSE(http_get("127.0.0.1", 1, "/a b", 500, &body, &error));
}

TEST_F(Server, HttpGetReportsAnotherStatus) {
  std::string body;
  EXPECT_FALSE(http_get("127.0.0.1", server_.port(), "/nothing", 1000, &body, &error_));
  EXPECT_THAT(error_, HasSubstr("404 Not Found"));
}

}  // namespace
}  // namespace foreshock
