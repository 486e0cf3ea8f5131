package demo

import (
	"encoding/json"

	"github.com/paddock-run/paddock/api"
)

// manifest is the batch: groups of episodes that share a task and a start, each played by
// a process of its own.
func (l *loop) manifest(run string) (api.BatchSpec, error) {
	spec := api.BatchSpec{Run: run}
	for i := range Episodes {
		f := l.folderOf(i)
		input, err := json.Marshal(task{Documents: "/docs", Published: f.Published, Prior: prior, MaxTurns: maxTurns})
		if err != nil {
			return api.BatchSpec{}, err
		}
		spec.Episodes = append(spec.Episodes, api.BatchEpisode{
			EpisodeSpec: api.EpisodeSpec{
				ID: episodeID(i), Group: groupOf(i), Task: f.Name, World: l.worlds[f.Name], Input: input,
				Retries: retries, Graders: []api.WeightedGrader{{Grader: l.graders["turns"]}},
			},
			Agent: api.AgentSpec{Host: l.Agent},
		})
	}
	return spec, nil
}
