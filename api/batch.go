package api

// BatchSpec asks for a batch.
type BatchSpec struct{}

// Batch is many episodes.
type Batch struct{}

// Batches is a list of batches.
type Batches struct {
	Batches []Batch `json:"batches"`
}

// BatchResult is one episode's result in a batch.
type BatchResult struct{}
