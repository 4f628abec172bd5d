#include "src/api/cluster_events.h"

#include <chrono>
#include <utility>

#include "fmt/format.h"

namespace baton::api {

using http::HttpClientGone;
using http::HttpHeaders;
using http::HttpResponder;

ClockPair ClusterEvents::Now() {
  return {.steady_us = SystemClock().NowUs(), .wall_unix_us = SystemClock().WallUnixUs()};
}

ClusterEvents::Entry ClusterEvents::Add(HttpHeaders headers,
                                        std::shared_ptr<HttpResponder> responder) {
  MutexLock lock(mutex_);
  if (is_stopped_) return Entry::kStopped;
  if (viewers_.size() + num_starting_ >= kMaxViewers) return Entry::kFull;
  ++num_starting_;
  const uint64_t number = ++last_number_;
  lock.Unlock();
  headers.Set("Content-Type", "text/event-stream");
  headers.Set("Cache-Control", "no-cache");
  headers.Set("X-Accel-Buffering", "no");  // nginx and its kin would collect events
  responder->StartStream(200, headers);
  if (ping_ms_ > 0) responder->KeepAlive(": ping\n\n", ping_ms_);
  lock.Lock();
  --num_starting_;
  if (is_stopped_) {  // meanwhile: nobody would ever write to it
    lock.Unlock();
    responder->FinishAndClose();
    return Entry::kTaken;
  }
  viewers_.push_back({number, responder, false});
  has_new_ = true;
  if (!thread_.joinable()) thread_ = Thread("ui-events", [this] { Run(); });
  lock.Unlock();
  changed_.NotifyAll();
  // One that has gone already is told at once, and found by its number.
  responder->OnClosed([this, number](HttpClientGone /*how*/) { Remove(number); });
  return Entry::kTaken;
}

void ClusterEvents::Remove(uint64_t number) {
  MutexLock lock(mutex_);
  std::erase_if(viewers_, [&](const Viewer& viewer) { return viewer.number == number; });
}

size_t ClusterEvents::num_viewers() const {
  MutexLock lock(mutex_);
  return viewers_.size();
}

void ClusterEvents::Run() {
  int64_t next_look_us = 0;
  MutexLock lock(mutex_);
  while (!is_stopped_) {
    if (viewers_.empty()) {
      diary_.Clear();
      next_look_us = 0;
      changed_.Wait(mutex_);
      continue;
    }
    const int64_t now_us = SystemClock().NowUs();
    if (!has_new_ && now_us < next_look_us) {
      changed_.WaitUntil(mutex_, std::chrono::steady_clock::now() +
                                     std::chrono::microseconds(next_look_us - now_us));
      continue;
    }
    const std::vector<Viewer> present = viewers_;
    for (Viewer& viewer : viewers_) viewer.is_welcome = true;
    has_new_ = false;
    lock.Unlock();
    const bool is_due = now_us >= next_look_us;
    if (is_due) next_look_us = now_us + kIntervalUs;
    Serve(present, is_due);
    lock.Lock();
  }
}

void ClusterEvents::Serve(const std::vector<Viewer>& viewers, bool is_due) {
  std::string news;
  if (is_due) {
    if (const std::optional<ClusterLook> look = look_()) news = diary_.Add(*look);
  }
  std::string welcome;
  for (const Viewer& viewer : viewers) {
    if (!viewer.is_welcome && welcome.empty()) welcome = diary_.Welcome(Now(), kIntervalUs);
    const std::string& text = viewer.is_welcome ? news : welcome;
    if (text.empty()) continue;
    if (viewer.responder->buffered_bytes() > kMaxUnreadBytes) {
      viewer.responder->Abort();
      Remove(viewer.number);
    } else if (!viewer.responder->Write(text)) {
      Remove(viewer.number);
    }
  }
}

void ClusterEvents::Stop() {
  MutexLock lock(mutex_);
  is_stopped_ = true;
  Thread thread = std::move(thread_);
  lock.Unlock();
  changed_.NotifyAll();
  thread.Join();
  lock.Lock();
  const std::vector<Viewer> viewers = std::exchange(viewers_, {});
  lock.Unlock();
  const std::string end = fmt::format(
      "data: {{\"version\":{},\"type\":\"end\",\"time_ms\":{},\"why\":\"draining\"}}\n\n",
      ClusterDiary::kVersion, Now().wall_unix_us / 1000);
  for (const Viewer& viewer : viewers) {
    viewer.responder->Write(end);
    viewer.responder->FinishAndClose();
  }
}

}  // namespace baton::api
