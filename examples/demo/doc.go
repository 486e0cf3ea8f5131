// Package demo is the training loop that `paddock demo` runs: three worlds of documents,
// a batch of episodes over them in groups, a seeded agent in a process of its own for
// each episode, two scorings, and one episode run again. It uses the public client alone
// and checks everything that it prints.
package demo
