// A conversation to token ids, so that special tokens come from the template only. Any thread.
#ifndef BATON_TEXT_CHAT_ENCODER_H_
#define BATON_TEXT_CHAT_ENCODER_H_

#include <span>
#include <string>
#include <vector>

#include "src/base/ids.h"
#include "src/base/status.h"
#include "src/text/chat_template.h"
#include "src/text/tokenizer.h"

namespace baton::text {

// The prompt that the model is given for a conversation.
struct ChatPrompt {
  std::vector<TokenId> tokens;
  std::string text;  // the rendered prompt, for people; without a bos that the template left out
};

// Renders `messages` and encodes the result. Control tokens spelled in a message, in a variable of
// `options` or in a name within either stay ordinary text. Before rendering they are broken with a
// guard character (a Unicode noncharacter that occurs nowhere else in the request). It is taken out
// of the rendered text again, which is then encoded whole: control tokens do not form across the
// places where it stood. A name, type or value of letters, digits and '_' alone is broken only if
// it holds a whole token, so that templates can compare it. bos is put in front if the model asks
// for it and the template did not. Errors of ChatTemplate::Render and Tokenizer::Encode;
// InvalidArgument when the messages use up all 32 guard characters.
StatusOr<ChatPrompt> EncodeChat(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
                                std::span<const ChatMessage> messages,
                                const RenderOptions& options = {});

}  // namespace baton::text

#endif  // BATON_TEXT_CHAT_ENCODER_H_
