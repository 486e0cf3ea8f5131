package egress

import "encoding/json"

// Completion is what an answer in OpenAI's form has of tokens: of one JSON body, or joined
// from the events of a stream.
type Completion struct {
	Model          string   `json:"model,omitempty"`
	PromptTokenIDs []int64  `json:"prompt_token_ids,omitempty"`
	Choices        []Choice `json:"choices,omitempty"`
}

// Choice is one of an answer's texts. Each list is empty, or as long as the answer has
// tokens.
type Choice struct {
	Index        int       `json:"index"`
	TokenIDs     []int64   `json:"token_ids,omitempty"`
	Tokens       []string  `json:"tokens,omitempty"`
	Logprobs     []float64 `json:"logprobs,omitempty"`
	FinishReason string    `json:"finish_reason,omitempty"`
}

// maxChoices bounds the choices of one answer.
const maxChoices = 256

// answerForm is what is read of an answer, of chat and of text completions.
type answerForm struct {
	Model          string  `json:"model"`
	PromptTokenIDs []int64 `json:"prompt_token_ids"`
	Choices        []struct {
		Index        int     `json:"index"`
		TokenIDs     []int64 `json:"token_ids"`
		FinishReason string  `json:"finish_reason"`
		// PromptTokenIDs stands here in text completions of vLLM.
		PromptTokenIDs []int64 `json:"prompt_token_ids"`
		Logprobs       *struct {
			// Content is of chat completions.
			Content []struct {
				Token   string  `json:"token"`
				Logprob float64 `json:"logprob"`
			} `json:"content"`
			// Tokens and TokenLogprobs are of text completions; the first token of an
			// echoed prompt has no number.
			Tokens        []string   `json:"tokens"`
			TokenLogprobs []*float64 `json:"token_logprobs"`
		} `json:"logprobs"`
	} `json:"choices"`
}

// completion reads the tokens of an answer; nil where there are none.
func completion(c *Content) *Completion {
	parts := c.Events
	if c.JSON != nil {
		parts = []json.RawMessage{c.JSON}
	}
	out := &Completion{}
	found := false
	for _, p := range parts {
		var a answerForm
		if json.Unmarshal(p, &a) != nil {
			continue // another kind of answer
		}
		found = out.join(&a) || found
	}
	if !found {
		return nil
	}
	return out
}

// join adds one part; it reports whether that has any tokens.
func (c *Completion) join(a *answerForm) (tokens bool) {
	if c.Model == "" {
		c.Model = a.Model
	}
	if len(a.PromptTokenIDs) > 0 {
		c.PromptTokenIDs, tokens = a.PromptTokenIDs, true
	}
	for i := range a.Choices {
		from := &a.Choices[i]
		to := c.choice(from.Index)
		if to == nil {
			continue
		}
		if from.FinishReason != "" {
			to.FinishReason = from.FinishReason
		}
		if len(from.PromptTokenIDs) > 0 && len(c.PromptTokenIDs) == 0 {
			c.PromptTokenIDs, tokens = from.PromptTokenIDs, true
		}
		to.TokenIDs = append(to.TokenIDs, from.TokenIDs...)
		tokens = tokens || len(from.TokenIDs) > 0
		if from.Logprobs == nil {
			continue
		}
		for _, t := range from.Logprobs.Content {
			to.Tokens, to.Logprobs, tokens = append(to.Tokens, t.Token), append(to.Logprobs, t.Logprob), true
		}
		for j, t := range from.Logprobs.Tokens {
			p := 0.0
			if j < len(from.Logprobs.TokenLogprobs) && from.Logprobs.TokenLogprobs[j] != nil {
				p = *from.Logprobs.TokenLogprobs[j]
			}
			to.Tokens, to.Logprobs, tokens = append(to.Tokens, t), append(to.Logprobs, p), true
		}
	}
	return tokens
}

// choice finds the choice of that index, or begins it.
func (c *Completion) choice(index int) *Choice {
	for i := range c.Choices {
		if c.Choices[i].Index == index {
			return &c.Choices[i]
		}
	}
	if len(c.Choices) >= maxChoices {
		return nil
	}
	c.Choices = append(c.Choices, Choice{Index: index})
	return &c.Choices[len(c.Choices)-1]
}
