#include "src/cli/trace/why_report.h"

#include <algorithm>
#include <string_view>

#include "fmt/format.h"
#include "nlohmann/json.hpp"

#include "src/base/size_text.h"
#include "src/cli/json_fields.h"

namespace baton::cli {
namespace {

using nlohmann::ordered_json;

double Ms(int64_t us) { return static_cast<double>(us) / 1000.0; }

double ShareOf(const StageSpan& stage, const TracedRequest& request) {
  const int64_t whole_us = request.elapsed_us();
  return whole_us <= 0 ? 0 : static_cast<double>(stage.elapsed_us) / static_cast<double>(whole_us);
}

// Describes what a request waits for in the stage.
std::string_view MeaningOf(std::string_view stage) {
  struct Meaning {
    std::string_view stage;
    std::string_view text;
  };
  constexpr Meaning kMeanings[] = {
      {"admit", "a place: the router's queue, until workers had room for it"},
      {"queue_prefill", "its turn at the worker that computes the prompt"},
      {"prefill", "its prompt being computed"},
      {"kv_wait", "room for its KV at the decode worker (the grant)"},
      {"kv_transfer", "its KV on the way and being verified, beyond what prefill hid"},
      {"queue_decode", "its turn at the decode worker"},
      {"first_step", "its first decode step"},
      {"decode", "its further tokens being decoded, one a step"}};
  for (const Meaning& meaning : kMeanings) {
    if (meaning.stage == stage) return meaning.text;
  }
  return "a stage that this release does not know";
}

// Why the router chose the workers so, by the name of the reason; "" = the name is not known.
std::string_view MeaningOfRoute(std::string_view route) {
  struct Meaning {
    std::string_view route;
    std::string_view text;
  };
  constexpr Meaning kMeanings[] = {
      {"pair",
       "a prefill worker computes prompts unless something speaks against it; among pairs, "
       "exactness and room come first, then load, then the predicted time"},
      {"aggregated_mode", "--mode, or the request's own path, asks for the decode worker alone"},
      {"short_prompt", "no more than --local-prefill-tokens of its prompt were to be computed"},
      {"no_prefill_worker", "no prefill worker was ready"},
      {"no_compatible_pair", "no prefill worker fits a decode worker"},
      {"no_link", "no link between the prefill and decode workers was up"},
      {"prompt_exceeds_prefill", "its prompt is larger than the pool of every prefill worker"},
      {"no_decode_worker", "no decode worker was ready"},
      {"exceeds_every_pool", "its prompt is larger than the pool of every decode worker"},
      {"bad_link", "the links rest after faults, or had failed it before"},
      {"prefill_queue",
       "prompts waited at the prefill workers for longer than it cost to compute "
       "its prompt beside the streams"},
      {"slow_link", "its KV would have taken longer to cross than to be computed"},
      {"decode_hit", "the decode worker's cache held more of its prompt"},
      {"faster_decode", "the decode worker was predicted to compute its prompt sooner"}};
  for (const Meaning& meaning : kMeanings) {
    if (meaning.route == route) return meaning.text;
  }
  return "";
}

std::string RouteText(const TracedRequest& request) {
  if (request.route.empty()) return "";
  const std::string_view meaning = MeaningOfRoute(request.route);
  if (meaning.empty()) {
    return fmt::format("Its path has the reason {}.\n", Printable(request.route));
  }
  return fmt::format("Its path has the reason {}: {}.\n", request.route, meaning);
}

std::string HowItEnded(const TracedRequest& request) {
  if (request.status == 0) return fmt::format("lives ({})", request.state);
  return fmt::format("ended with status {}", request.status);
}

// The part of the prompt that the decode worker held, and whether that is why it was taken.
std::string HeldText(const TracedRequest& request) {
  if (request.num_held_tokens == 0) return "";
  return fmt::format("{} was taken to hold {} tokens of the prompt{}.\n", request.decode_worker,
                     request.num_held_tokens,
                     request.for_prefix ? ", more than a less loaded decode worker" : "");
}

std::string WorkText(const TracedRequest& request) {
  std::string text =
      fmt::format("{} prompt tokens ({} cached), {} tokens out", request.num_prompt_tokens,
                  request.num_cached_tokens, request.num_output_tokens);
  if (request.decode_worker.empty()) return text + "; no worker had it";
  if (!request.disaggregated) {
    text += "; all of it at " + request.decode_worker;
    return request.route.empty() ? text : text + fmt::format(" ({})", request.route);
  }
  return text + fmt::format("; {} -> {} over {}, {} of KV", request.prefill_worker,
                            request.decode_worker, request.transport, FormatSize(request.kv_bytes));
}

std::string BesideText(const std::string& worker, const BesideLoad& load) {
  return fmt::format("{} ran {} and had {} waiting, {} of {} blocks free", worker, load.running,
                     load.waiting, load.free_blocks, load.num_blocks);
}

std::string LoadText(const TracedRequest& request) {
  std::string text = fmt::format("When it came, {} other requests ran and {} waited at the router",
                                 request.num_running, request.num_waiting);
  if (request.decode_worker.empty()) return text + ".\n";
  text += ".\nWhen it was placed, ";
  if (request.disaggregated) {
    text += BesideText(request.prefill_worker, request.prefill_load) + "; ";
  }
  return text + BesideText(request.decode_worker, request.decode_load) + ".\n" + HeldText(request);
}

bool WasNeverPlaced(const TracedRequest& request) {
  return request.num_attempts == 0 && request.status != 0;
}

std::string PlacementText(const TracedRequest& request) {
  if (WasNeverPlaced(request)) {
    const std::string waited =
        request.queue_us > 0
            ? fmt::format("it waited {:.1f} ms in the queue, and ended", Ms(request.queue_us))
            : "it ended";
    return fmt::format("It was never placed: {} {:.1f} ms after it came.\n", waited,
                       Ms(request.elapsed_us()));
  }
  if (request.num_attempts == 0) return "It was not placed yet.\n";
  if (request.num_attempts == 1) return "It was placed once.\n";
  std::string reasons;
  uint64_t num_resumes = 0;
  for (const auto& [reason, count] : request.resumes) {
    reasons += fmt::format("{}{} {}", reasons.empty() ? ": " : ", ", reason, count);
    num_resumes += count;
  }
  return fmt::format(
      "It was placed {} times, {} of them after a fault or a planned move{}, and waited {:.1f} ms "
      "for new places.\n",
      request.num_attempts, num_resumes, reasons, Ms(request.placed_again_us));
}

std::string StepsText(const TracedRequest& request, const StepsMeanwhile& steps) {
  std::string text;
  if (request.longest_gap_us > 0) {
    text += fmt::format("Its longest pause between two tokens was {:.1f} ms, before token {}.\n",
                        Ms(request.longest_gap_us), request.longest_gap_idx);
  }
  if (steps.num_steps == 0) return text;
  text += fmt::format("Meanwhile {} ran {} steps of {:.1f} ms with {:.1f} streams each",
                      request.decode_worker, steps.num_steps, steps.mean_ms, steps.mean_rows);
  if (steps.num_mixed == 0) return text + ".\n";
  return text + fmt::format("; {} of them also computed {} prompt tokens.\n", steps.num_mixed,
                            steps.prompt_tokens);
}

}  // namespace

StepsMeanwhile StepsBeside(const TracedRequest& request, const std::vector<TracePage>& pages) {
  int64_t begin_us = request.end_us;
  for (const StageSpan& stage : request.stages) {
    if (stage.name == "first_step" || stage.name == "decode") begin_us -= stage.elapsed_us;
  }
  StepsMeanwhile sum;
  for (const TracePage& page : pages) {
    if (page.worker_id != request.decode_worker) continue;
    for (const TracedStep& step : page.steps) {
      if (step.end_us < begin_us || step.end_us > request.end_us) continue;
      ++sum.num_steps;
      sum.mean_ms += Ms(step.elapsed_us);
      sum.mean_rows += static_cast<double>(step.num_decode_rows);
      if (step.num_prefill_tokens > 0) ++sum.num_mixed;
      sum.prompt_tokens += step.num_prefill_tokens;
    }
  }
  if (sum.num_steps == 0) return sum;
  sum.mean_ms /= static_cast<double>(sum.num_steps);
  sum.mean_rows /= static_cast<double>(sum.num_steps);
  return sum;
}

StageSpan LongestStage(const TracedRequest& request) {
  const auto longest =
      std::max_element(request.stages.begin(), request.stages.end(),
                       [](const auto& a, const auto& b) { return a.elapsed_us < b.elapsed_us; });
  return longest == request.stages.end() ? StageSpan{} : *longest;
}

namespace {

std::string StagesText(const TracedRequest& request) {
  std::string text;
  const StageSpan longest = LongestStage(request);
  text += fmt::format("{:<14} {:>10} {:>7}   {}\n", "stage", "ms", "share", "waiting for");
  for (const StageSpan& stage : request.stages) {
    text += fmt::format("{:<14} {:>10.1f} {:>5.1f} %   {}{}\n", stage.name, Ms(stage.elapsed_us),
                        100.0 * ShareOf(stage, request), MeaningOf(stage.name),
                        stage.name == longest.name ? "  <- longest" : "");
  }
  return text + fmt::format("\nIt spent {:.0f} % of its time in {}: {}.\n",
                            100.0 * ShareOf(longest, request), longest.name,
                            MeaningOf(longest.name));
}

}  // namespace

std::string WhyText(const TracedRequest& request, const StepsMeanwhile& steps) {
  std::string text =
      fmt::format("request {} ({}) of {} {} after {:.1f} ms\n", Printable(request.request_id),
                  request.answer_id.empty() ? request.request_uid : request.answer_id,
                  request.model, HowItEnded(request), Ms(request.elapsed_us()));
  if (!request.error.empty()) {
    text += fmt::format("Its client was told: {}\n", Printable(request.error));
  }
  text += WorkText(request) + "\n";
  // Refused at once: what it was told says more than a stage that is all of its time.
  if (WasNeverPlaced(request) && request.queue_us <= 0) {
    return text + "\n" + LoadText(request) + PlacementText(request);
  }
  text += RouteText(request) + "\n";
  return text + StagesText(request) + LoadText(request) + PlacementText(request) +
         StepsText(request, steps);
}

std::string WhyJson(const TracedRequest& request, const StepsMeanwhile& steps) {
  ordered_json root = {{"request_uid", request.request_uid},
                       {"request_id", request.request_id},
                       {"answer_id", request.answer_id},
                       {"model", request.model},
                       {"status", request.status},
                       {"error", request.error},
                       {"state", request.state},
                       {"end_to_end_ms", Ms(request.elapsed_us())}};
  root["stages"] = ordered_json::array();
  for (const StageSpan& stage : request.stages) {
    root["stages"].push_back({{"name", stage.name},
                              {"ms", Ms(stage.elapsed_us)},
                              {"share", ShareOf(stage, request)},
                              {"means", MeaningOf(stage.name)}});
  }
  root["longest"] = LongestStage(request).name;
  root["queue_ms"] = Ms(request.queue_us);
  root["prompt_tokens"] = request.num_prompt_tokens;
  root["cached_tokens"] = request.num_cached_tokens;
  root["held_tokens"] = request.num_held_tokens;
  root["for_prefix"] = request.for_prefix;
  root["output_tokens"] = request.num_output_tokens;
  root["placed"] = request.num_attempts > 0;
  root["route"] = request.route;
  root["route_means"] = MeaningOfRoute(request.route);
  root["prefill_worker"] = request.prefill_worker;
  root["decode_worker"] = request.decode_worker;
  root["transport"] = request.transport;
  root["kv_bytes"] = request.kv_bytes;
  root["attempts"] = request.num_attempts;
  root["resumes"] = request.resumes;
  root["placed_again_ms"] = Ms(request.placed_again_us);
  root["longest_gap_ms"] = Ms(request.longest_gap_us);
  const auto beside = [](const BesideLoad& load) {
    return ordered_json{{"running", load.running},
                        {"waiting", load.waiting},
                        {"free_blocks", load.free_blocks},
                        {"num_blocks", load.num_blocks}};
  };
  root["load"] = {{"running", request.num_running},
                  {"waiting", request.num_waiting},
                  {"prefill", beside(request.prefill_load)},
                  {"decode", beside(request.decode_load)}};
  root["steps"] = {{"num_steps", steps.num_steps},
                   {"mean_ms", steps.mean_ms},
                   {"mean_rows", steps.mean_rows},
                   {"num_mixed", steps.num_mixed},
                   {"prompt_tokens", steps.prompt_tokens}};
  return root.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace baton::cli
