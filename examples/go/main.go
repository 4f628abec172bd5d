// Streams one answer with Go's standard library alone.
//
//	cd examples/go && go run . [-url http://HOST:PORT] [QUESTION]
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strings"
)

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

type request struct {
	Model       string    `json:"model"`
	Messages    []message `json:"messages"`
	Temperature float64   `json:"temperature"`
	MaxTokens   int       `json:"max_completion_tokens"`
	Stream      bool      `json:"stream"`
}

// chunk is one event of the stream. After a fault the last one has an error instead of choices.
type chunk struct {
	Choices []struct {
		Delta        message `json:"delta"`
		FinishReason string  `json:"finish_reason"`
	} `json:"choices"`
	Error *struct {
		Message string `json:"message"`
	} `json:"error"`
	Timings json.RawMessage `json:"timings"`
}

// errCut: a stream that is whole ends with [DONE].
var errCut = errors.New("the stream ended before the answer did")

// stream writes the text of one answer as it comes, and returns the last chunk's timings.
func stream(ctx context.Context, url, question string, out io.Writer) (json.RawMessage, error) {
	body, err := json.Marshal(request{
		Model:     "default",
		Messages:  []message{{Role: "user", Content: question}},
		MaxTokens: 100,
		Stream:    true,
	})
	if err != nil {
		return nil, err
	}
	ask, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/chat/completions",
		bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	ask.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(ask)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(answer.Body)
		return nil, fmt.Errorf("%s: %s", answer.Status, text)
	}
	return readEvents(answer.Body, out)
}

func readEvents(body io.Reader, out io.Writer) (json.RawMessage, error) {
	var timings json.RawMessage
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, 1<<20) // an event with log-probabilities is longer than Scanner's 64 KiB
	for lines.Scan() {
		data, isData := strings.CutPrefix(lines.Text(), "data: ")
		if !isData { // an empty line, or a comment that keeps a silent stream open
			continue
		}
		if data == "[DONE]" {
			return timings, nil
		}
		var event chunk
		if err := json.Unmarshal([]byte(data), &event); err != nil {
			return nil, err
		}
		if event.Error != nil {
			return nil, errors.New(event.Error.Message)
		}
		if event.Timings != nil {
			timings = event.Timings
		}
		for _, choice := range event.Choices {
			fmt.Fprint(out, choice.Delta.Content)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	return nil, errCut
}

func main() {
	url := flag.String("url", "http://127.0.0.1:8080", "the server")
	flag.Parse()
	question := strings.Join(flag.Args(), " ")
	if question == "" {
		question = "Why is the sky blue?"
	}
	// Ctrl-C closes the connection, and the server stops within one step.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	timings, err := stream(ctx, strings.TrimRight(*url, "/"), question, os.Stdout)
	fmt.Println()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Printf("%s\n", timings)
}
