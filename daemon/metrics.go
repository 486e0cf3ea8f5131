package daemon

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/paddock-run/paddock/runner"
)

// metrics are the daemon's own; each daemon has a registry of its own.
type metrics struct {
	registry     *prometheus.Registry
	requests     *prometheus.CounterVec
	errors       *prometheus.CounterVec
	seconds      *prometheus.HistogramVec
	inflight     prometheus.Gauge
	conns        prometheus.Gauge
	refusedConns prometheus.Counter
	refusedPeers prometheus.Counter
	panics       prometheus.Counter
}

func newMetrics() *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "paddock_http_requests_total", Help: "Requests answered, by operation and status.",
		}, []string{"operation", "status"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "paddock_http_errors_total", Help: "Problem documents sent, by operation and kind.",
		}, []string{"operation", "kind"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "paddock_http_request_seconds", Help: "How long requests took, streams included.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 20),
		}, []string{"operation"}),
		inflight:     prometheus.NewGauge(prometheus.GaugeOpts{Name: "paddock_http_requests_in_flight", Help: "Requests being served."}),
		conns:        prometheus.NewGauge(prometheus.GaugeOpts{Name: "paddock_connections", Help: "Open connections."}),
		refusedConns: prometheus.NewCounter(prometheus.CounterOpts{Name: "paddock_connections_refused_total", Help: "Connections over the cap."}),
		refusedPeers: prometheus.NewCounter(prometheus.CounterOpts{Name: "paddock_peers_refused_total", Help: "Requests of users who are not let in."}),
		panics:       prometheus.NewCounter(prometheus.CounterOpts{Name: "paddock_panics_total", Help: "Handlers that panicked."}),
	}
	m.registry.MustRegister(m.requests, m.errors, m.seconds, m.inflight, m.conns, m.refusedConns, m.refusedPeers, m.panics,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// watch adds what the runner knows of capacity.
func (m *metrics) watch(capacity func() runner.Capacity) {
	gauge := func(name, help string, value func(runner.Capacity) float64) {
		m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return value(capacity()) }))
	}
	gauge("paddock_episodes_live", "Live attempts.", func(c runner.Capacity) float64 { return float64(c.Live) })
	gauge("paddock_episodes_queued", "Episodes that wait for capacity.", func(c runner.Capacity) float64 { return float64(c.Queued) })
	gauge("paddock_sandboxes_blank", "Begun sandboxes that wait to be used.", func(c runner.Capacity) float64 { return float64(c.Stock.Blanks) })
	gauge("paddock_sandboxes_warm", "Whole sandboxes that wait to be used.", func(c runner.Capacity) float64 { return float64(c.Stock.Warm) })
	gauge("paddock_cpus", "CPUs that episodes may reserve.", func(c runner.Capacity) float64 { return c.CPUs })
	gauge("paddock_cpus_reserved", "CPUs that live episodes have reserved.", func(c runner.Capacity) float64 { return c.UsedCPUs })
	gauge("paddock_memory_bytes", "Memory that episodes may reserve.", func(c runner.Capacity) float64 { return float64(c.MemoryBytes) })
	gauge("paddock_memory_reserved_bytes", "Memory that live episodes have reserved.", func(c runner.Capacity) float64 { return float64(c.UsedMemoryBytes) })
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

func (m *metrics) served(operation string, status int, began time.Time) {
	m.requests.WithLabelValues(operation, strconv.Itoa(status)).Inc()
	m.seconds.WithLabelValues(operation).Observe(time.Since(began).Seconds())
}
