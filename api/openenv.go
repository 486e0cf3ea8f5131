package api

// OpenEnvHealth is what OpenEnv's clients ask first.
type OpenEnvHealth struct {
	Status string `json:"status"`
}

// OpenEnvMetadata says what an environment is.
type OpenEnvMetadata struct {
	Name        string `json:"name"`
	Description string `json:"description"`
	Version     string `json:"version"`
}

// OpenEnvSchema are the JSON schemas of an environment.
type OpenEnvSchema struct {
	Action      map[string]any `json:"action"`
	Observation map[string]any `json:"observation"`
	State       map[string]any `json:"state"`
}

// OpenEnvState is an environment's state.
type OpenEnvState struct {
	Episode   *string `json:"episode_id"`
	StepCount int64   `json:"step_count"`
}

// OpenEnvStep is the answer to a reset or a step.
type OpenEnvStep struct {
	Observation map[string]any `json:"observation"`
	Reward      *float64       `json:"reward"`
	Done        bool           `json:"done"`
	Metadata    map[string]any `json:"metadata,omitempty"`
}
